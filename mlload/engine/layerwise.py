"""A model run one decoder layer at a time: only that layer's weights are in memory.

The class is transformers' own, on the meta device. A first pass with every layer's forward replaced shows what each
layer is called with (masks, rotary positions); then layers are filled, run over all samples, and emptied again. Of
experts that the class stacks in one tensor only one is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mlload.checkpoint.finding import MlloadError
from mlload.engine.layerwise_experts import RoutedExperts, expert_tensors, runs
from mlload.engine.meta import class_of
from mlload.engine.names import Names
from mlload.plan.model import Model

CACHE_NAMES = ("cache", "past_key_values", "layer_past")  # as transformers calls it, by version and class
HEAD_ROWS = 16384  # of an output head, widened at a time


class Layerwise:
    """model: as read; read: disk tensor -> its values; names: the disk tensors there are; device: where layers run.

    What lies between layers is on the CPU. Every sample has the same length and no padding, so that what layers are
    called with does not depend on it.
    """

    def __init__(
        self, model: Model, read: Callable[[str], Tensor], names: list[str], device: str | torch.device = "cpu"
    ) -> None:
        self.model = model
        self.read = read
        self.device = torch.device(device)
        self.net = class_of(model, torch.float32, hint="--method rtn, fp8, int8, mxfp4 or nvfp4 need no class")
        lookup = Names(self.net)
        one_by_one = expert_tensors(model)
        self.params: dict[str, str] = {}
        stacks: dict[str, dict[int, dict[str, str]]] = {}
        for name in names:
            there = lookup.parameter(name)
            if there is None:
                continue
            path = there.rpartition(".")[0]
            if name in one_by_one and len(lookup.shape(there)) == 3 and runs(self.net.get_submodule(path)):
                expert, role = one_by_one[name]
                stacks.setdefault(path, {}).setdefault(expert, {})[role] = name
            elif there in self.params:
                raise MlloadError(
                    f"{path} holds several tensors of the checkpoint in one of the class, in a way that only its own "
                    "code knows: methods that need calibration are not offered for such models",
                    hint="--method rtn, fp8, int8, mxfp4 or nvfp4 need no data",
                    exit_code=3,
                )
            else:
                self.params[there] = name
        self.root, self.layers = _layers(self.net, model.config.layers)
        self.experts = self._stand_ins(stacks)
        self._calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.cache: Any = None  # what attention writes its keys and values to, where somebody wants to see them
        self._tuples = False
        self._compute_buffers()

    def disk(self, module: nn.Module, suffix: str = "weight") -> str | None:
        """The disk tensor of a module of the class."""
        for path, there in self.net.named_modules():
            if there is module:
                return self.params.get(f"{path}.{suffix}")
        return None

    def layer_tensors(self, number: int) -> list[str]:
        """Disk tensors of one layer."""
        prefix = f"{self.root}.{number}."
        found = [disk for there, disk in self.params.items() if there.startswith(prefix)]
        experts = self.experts.get(number)
        if experts is not None:
            found += [disk for roles in experts.linears.values() for disk in roles.values()]
        return found

    def outside(self) -> set[str]:
        """Parameters of the class outside the layers."""
        return {there for there in self.params if not there.startswith(self.root + ".")}

    def fill(self, prefix: str) -> None:
        """Parameters below a path get their values, as float32."""
        for there, disk in self.params.items():
            if there.startswith(prefix):
                self._set(there, self.read(disk).to(self.device, torch.float32, copy=True))
        missing = [n for n, p in self.net.named_parameters() if n.startswith(prefix) and p.is_meta]
        if missing:
            raise MlloadError(f"the checkpoint has nothing for {missing[0]} of transformers' class", exit_code=3)

    def empty(self, prefix: str) -> None:
        for there, _ in list(self.net.named_parameters(remove_duplicate=False)):
            if there.startswith(prefix):
                holder, _, last = there.rpartition(".")
                module = self.net.get_submodule(holder)
                kept = module._parameters[last]
                assert kept is not None
                module._parameters[last] = nn.Parameter(kept.data.to("meta"), requires_grad=False)

    def layer_prefix(self, number: int) -> str:
        return f"{self.root}.{number}."

    @torch.inference_mode()
    def embed(self, samples: Tensor, out: Tensor | None = None) -> Tensor:
        """[S, L] tokens -> what the first layer sees, float32 [S, L, H] (in `out` where that is given); notes what each
        layer is called with."""
        held: list[Tensor] = []
        self._calls = [((), {})] * len(self.layers)

        def noted(number: int) -> Callable[..., Any]:
            def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
                if number == 0:
                    held.append(hidden_states.cpu())
                self._calls[number] = (args, kwargs)
                return self._given(hidden_states)

            return forward

        self._outside(samples, head=None)
        try:
            for number, layer in enumerate(self.layers):
                layer.forward = noted(number)
            tokens = samples.to(self.device)
            self._find_out_what_layers_give(tokens[:1])
            held.clear()
            for number, sample in enumerate(tokens):
                self.net(input_ids=sample[None], use_cache=False)
                if out is not None:
                    out[number] = held.pop()[0]
        finally:
            for layer in self.layers:
                del layer.forward
            self._outside_away()
        return torch.cat(held) if out is None else out

    @torch.inference_mode()
    def run(self, number: int, hidden: Tensor) -> Iterator[Tensor]:
        """One layer's outputs, sample by sample, [1, L, H] each, on the CPU."""
        experts = self.experts.get(number)
        if experts is None or experts.mode != "direct":
            yield from self._through(number, hidden)
            return
        experts.seen = hidden.new_empty(hidden.shape).reshape(-1, hidden.shape[-1])
        with experts.as_mode("keep"):
            for _ in self._through(number, hidden):
                pass
        experts.outputs = torch.empty_like(experts.seen)
        experts.all_outputs()
        with experts.as_mode("replay"):
            yield from self._through(number, hidden)
        experts.forget()

    def _find_out_what_layers_give(self, sample: Tensor) -> None:
        """A class that takes the first of what a layer gives loses a dim when it is a plain tensor."""
        for self._tuples in (False, True):
            try:
                if self.net(input_ids=sample, use_cache=False).logits.dim() == 3:
                    return
            except (IndexError, ValueError, RuntimeError):
                if self._tuples:
                    raise

    def _given(self, hidden: Tensor) -> Any:
        """As the class's layers give it."""
        return (hidden,) if self._tuples else hidden

    def _through(self, number: int, hidden: Tensor) -> Iterator[Tensor]:
        args, kwargs = self._calls[number]
        if self.cache is not None:
            kwargs = kwargs | {name: self.cache for name in CACHE_NAMES if name in kwargs}
        for sample in hidden:
            found = self.layers[number](sample[None].to(self.device), *args, **kwargs)
            yield (found[0] if isinstance(found, tuple) else found).cpu()

    @torch.inference_mode()
    def logits(self, samples: Tensor, hidden: Tensor) -> Iterator[Tensor]:
        """Sample by sample: what the class makes of the last layer's outputs, float32 [L, V]."""
        at: list[Tensor] = []

        def first(*_: Any, **__: Any) -> Any:
            return self._given(at[0])

        def after(hidden_states: Tensor, *_: Any, **__: Any) -> Any:
            return self._given(hidden_states)

        self._outside(samples, head=_Head(self._head_weight()))
        try:
            for number, layer in enumerate(self.layers):
                layer.forward = first if number == 0 else after
            for sample, states in zip(samples.to(self.device), hidden, strict=True):
                at[:] = [states[None].to(self.device)]
                yield self.net(input_ids=sample[None], use_cache=False).logits[0].float().cpu()
        finally:
            for layer in self.layers:
                del layer.forward
            self._outside_away()

    def _stand_ins(self, stacks: dict[str, dict[int, dict[str, str]]]) -> dict[int, RoutedExperts]:
        """Puts them into the class: layer -> its experts."""
        found: dict[int, RoutedExperts] = {}
        for path, linears in stacks.items():
            number = int(path.removeprefix(self.root + ".").partition(".")[0])
            if number in found or any("down" not in roles or len(roles) < 2 for roles in linears.values()):
                raise MlloadError(f"{path}: its experts are not whole, or not the only ones of its layer", exit_code=3)
            original = self.net.get_submodule(path)
            made = RoutedExperts(
                original, dict(sorted(linears.items())), self.read, self.model.config.hidden, self.device
            )
            self.net.set_submodule(path, made)
            found[number] = made
        return found

    # Outside the layers

    def _head_weight(self) -> tuple[Tensor, Tensor | None]:
        head = self.net.get_output_embeddings()
        name = self.disk(head)
        if name is None:
            name = self.disk(self.net.get_input_embeddings())
        if name is None:
            raise MlloadError("the checkpoint holds no output head", exit_code=3)
        bias = self.disk(head, "bias")
        return self.read(name), None if bias is None else self.read(bias).float()

    def _outside(self, samples: Tensor, head: nn.Module | None) -> None:
        """Norms, tables; of the input table the rows of the samples' tokens. The head is not computed, or by rows."""
        self._kept_head = self.net.get_output_embeddings()
        self.net.set_output_embeddings(head if head is not None else _NoHead())
        table = self.net.get_input_embeddings()
        for there in self.outside():
            try:
                module = self.net.get_submodule(there.rpartition(".")[0])
            except AttributeError:
                continue  # the head, which is apart
            if isinstance(module, _NoHead | _Head):
                continue
            if module is table:
                self._look_up(table, self.read(self.params[there]), samples)
            else:
                self._set(there, self.read(self.params[there]).to(self.device, torch.float32, copy=True))

    def _look_up(self, table: Any, values: Tensor, samples: Tensor) -> None:
        """`table` holds float32 [U, H] for the U tokens that occur, and finds them by the tokens' ids."""
        used = torch.unique(samples)
        place = torch.zeros(len(values), dtype=torch.long)
        place[used] = torch.arange(len(used))
        place = place.to(self.device)
        self._kept_table = (table._parameters["weight"], table.padding_idx)
        table._parameters["weight"] = nn.Parameter(values[used].float().to(self.device), requires_grad=False)
        table.padding_idx = None  # may lie beyond the rows that there are
        own = table.forward
        table.forward = lambda ids: own(place[ids])

    def _outside_away(self) -> None:
        table = self.net.get_input_embeddings()
        table.__dict__.pop("forward", None)
        table._parameters["weight"], table.padding_idx = self._kept_table
        self.net.set_output_embeddings(self._kept_head)
        for there in self.outside():
            self.empty(there)

    def _set(self, there: str, values: Tensor) -> None:
        holder, _, last = there.rpartition(".")
        module = self.net.get_submodule(holder)
        shape = module.get_parameter(last).shape if last in module._parameters else module.get_buffer(last).shape
        values = values.reshape(shape)
        if last in module._parameters:
            module._parameters[last] = nn.Parameter(values, requires_grad=False)
        else:
            module._buffers[last] = values

    def _compute_buffers(self) -> None:
        """Rotary tables and the like, which the class computes."""
        for param in self.net.parameters():
            param._is_hf_initialized = True
        for module in self.net.modules():
            computed = False
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.is_meta:
                    module._buffers[name] = torch.zeros(buffer.shape, dtype=buffer.dtype, device=self.device)
                    computed = True
            if computed:
                self.net._init_weights(module)


class _NoHead(nn.Identity):
    """Some classes ask a head for its weight's dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.empty(0)


class _Head(nn.Module):
    """A head that is widened to float32 a few rows at a time."""

    def __init__(self, stored: tuple[Tensor, Tensor | None]) -> None:
        super().__init__()
        self.stored, self.bias = stored
        self.weight = torch.empty(0)

    def forward(self, hidden: Tensor) -> Tensor:
        parts = [hidden @ rows.to(hidden.device).float().T for rows in torch.split(self.stored, HEAD_ROWS)]
        found = torch.cat(parts, -1)
        return found if self.bias is None else found + self.bias.to(hidden.device)


def _layers(net: nn.Module, count: int) -> tuple[str, list[Any]]:
    """The path and the modules of the decoder layers."""
    for path, module in net.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return path, list(module)
    raise MlloadError(f"{type(net).__name__} has no list of {count} layers", exit_code=3)
