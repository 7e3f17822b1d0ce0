"""A transformers class with our layers in it: built on the meta device, cut for one rank, its weights allocated.

Every family of the plan names modules on disk; transformers' own renamings say which module of the class that is.
nn.Linear, tables, heads and experts are replaced; of everything else the rank's own shape is allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from mlload.checkpoint.finding import MlloadError
from mlload.engine.build_attention import divide_attention
from mlload.engine.build_experts import place_experts
from mlload.engine.build_mixers import divide_buffers, divide_mixers
from mlload.engine.meta import meta_model
from mlload.engine.names import Names, folder_modules, parent_of
from mlload.engine.parts import Built, Part, Replaced
from mlload.engine.towers import has_towers, put_back, take_out, tower_modules, tower_parameters, without_towers
from mlload.loader.destination import Destination
from mlload.loader.dtypes import torch_dtype
from mlload.plan.bound import BoundParam
from mlload.plan.cutting import parts_of, share
from mlload.plan.params import ParamSpec
from mlload.plan.placement import Placement, is_expert, place
from mlload.plan.plan import Plan
from mlload.plan.segments import cut_tensor
from mlload.quant.layers.embedding import VocabParallelEmbedding
from mlload.quant.layers.group import ALONE, Group
from mlload.quant.layers.linear import ParallelLinear, ParallelLMHead
from mlload.quant.layers.method import LinearMethod, QuantizedMethod, StoredTensor, UnquantizedMethod


class Builder:
    """Builds one rank's model.

    wake: builds and loads the towers when one is first called; None where they never are. Only asked for where `plan`
    is that of the language model alone.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        device: torch.device,
        dtype: torch.dtype,
        group: Group,
    ) -> None:
        self.plan = plan
        self.rank = rank
        self.device = device
        self.dtype = dtype
        self.group = group
        self.model = meta_model(plan, dtype)
        self.names = Names(self.model)
        self.built = Built(self.model)
        self.folder = folder_modules(plan.model)
        self.wide = _kept_wide(self.model)
        self.wake: Callable[[], object] | None = None
        self.tables: dict[str, VocabParallelEmbedding] = {}
        self.assigned: set[str] = set()
        self.absent: set[str] = set()

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def build(self) -> Built:
        if has_towers(self.plan) and self.plan.view.params == without_towers(self.plan).view.params:
            self.absent = tower_parameters(self.names, self.plan)
            take_out(self.model, tower_modules(self.model, self.absent), self.wake)
        return self._filled()

    def build_towers(self, plan: Plan) -> Built:
        """The towers that were taken out, into the same model. plan: that of the towers alone. Its own `Built`."""
        put_back(self.model)
        self.plan, self.built, self.absent = plan, Built(self.model), set()
        return self._filled()

    def _filled(self) -> Built:
        parts, experts, heads = self._parts()
        with torch.no_grad():
            for part in parts:
                self._module(part)
            for path, members in experts.items():
                place_experts(self, path, members)
            self._tied(heads)
            divide_attention(self, parts)
            divide_mixers(self, parts)
            self._rest()
            divide_buffers(self, parts)
        return self.built

    def _parts(self) -> tuple[list[Part], dict[str, list[Part]], list[BoundParam]]:
        """Modules, experts by the class's module that holds them, and tied heads."""
        plan, view = self.plan, self.plan.view
        parts: list[Part] = []
        experts: dict[str, list[Part]] = {}
        tied: list[BoundParam] = []
        for param in view.params:
            if param.spec.draft:
                continue
            if param.alias and param.spec.op == "embedding":
                tied.append(param)
            at = place(param, plan.mesh, self.rank, plan.model.config.layers, view.tower_tp)
            if not param.stored or at is None:
                continue
            shapes = {
                tensor.suffix: StoredTensor(
                    cut_tensor(param, tensor, at, view.padding).shape, torch_dtype(tensor.dtype)
                )
                for tensor in param.stored
            }
            for part in self._expand(param, at, shapes):
                self._texts(part)
                holder, _ = parent_of(self.model, part.target)
                if is_expert(param.spec) and not isinstance(holder, nn.Linear):
                    experts.setdefault(part.target.rpartition(".")[0], []).append(part)
                else:
                    parts.append(part)
        return parts, experts, tied

    def _expand(self, param: BoundParam, at: Placement, shapes: dict[str, StoredTensor]) -> list[Part]:
        spec = param.spec
        known = self.folder.get(spec.module)
        found = []
        for layer in (None,) if at.layers is None else at.layers:
            for expert in (None,) if at.experts is None else at.experts:
                path = _expanded(spec.module, layer, expert)
                there = _expanded((known or spec).module, layer, expert if expert is not None else 0)
                # The name that the unquantized weight has: quantized tensors go to the same module.
                target = self.names.parameter((known or spec).tensor(there)) or self.names.parameter(there + ".weight")
                if target is None:
                    if spec.engine == "" or spec.optional:
                        self._beside(path, shapes)
                        continue
                    raise MlloadError(
                        f"the class {type(self.model).__name__} of the installed transformers has no parameter for "
                        f"{path}",
                        exit_code=3,
                    )
                suffixes = {suffix: suffix.removeprefix(".") or "weight" for suffix in shapes}
                found.append(
                    Part(
                        param,
                        at,
                        path,
                        target,
                        {suffixes[suffix]: tensor for suffix, tensor in shapes.items()},
                        {suffixes[suffix]: path + suffix for suffix in shapes},
                        expert,
                    )
                )
        return found

    def _texts(self, part: Part) -> None:
        """Tensors that hold a text of any length (bitsandbytes' quant_state) have the length that is in the file."""
        for suffix, tensor in part.tensors.items():
            ref = self.plan.model.checkpoint.tensors.get(part.names[suffix])
            if ref is not None and not tensor.shape and len(ref.shape) == 1 and prod(ref.shape) > 1:
                part.tensors[suffix] = tensor._replace(shape=ref.shape)
                self.built.uncounted.add(part.names[suffix])
                self.built.texts += 1

    def _beside(self, path: str, shapes: dict[str, StoredTensor]) -> None:
        for suffix, tensor in shapes.items():
            kept = nn.Parameter(torch.zeros(tensor.shape, dtype=tensor.dtype), requires_grad=False)
            self.built.beside[path + suffix] = kept
            self.built.destinations[path + suffix] = Destination(kept, tensor.shape)

    # One module

    def _module(self, part: Part) -> None:
        holder, last = parent_of(self.model, part.target)
        kind = type(holder).__name__
        spec = part.param.spec
        if isinstance(holder, nn.Embedding) and (spec.style == "vocab" or part.param.scheme is not None):
            self._table(part, holder)
        elif isinstance(holder, nn.Linear | ParallelLinear) and last == "bias":
            self._bias(part, holder)
        # Some routers are an nn.Linear that also chooses.
        elif kind == "Conv1D" or (isinstance(holder, nn.Linear) and spec.component != "router"):
            self._linear(part, holder)
        elif part.param.scheme is not None:
            raise MlloadError(f"{part.path} is quantized, and {kind} is not replaced by a quantized layer", exit_code=3)
        else:
            self._plain(part, holder, last)

    def _linear(self, part: Part, old: nn.Module) -> None:
        spec, scheme = part.param.spec, part.param.scheme
        n, k = self.extent(part)
        method: LinearMethod
        if scheme is None:
            method = UnquantizedMethod(self.dtype_of(part.target), transposed=spec.axes == ("K", "N"))
        else:
            method = QuantizedMethod(scheme, self.dtype, spec.transforms)
        layer: ParallelLinear
        group = self.group if part.at.size > 1 else ALONE
        if spec.style == "vocab":
            layer = ParallelLMHead(part.path, n, k, spec.n, method, group)
        else:
            layer = ParallelLinear(part.path, n, k, spec.style, method, group)
        rename = {spec.weight: "weight"} if scheme is None else {}
        tensors = {rename.get(suffix, suffix): tensor for suffix, tensor in part.tensors.items()}
        if spec.style == "vocab":
            tensors = {suffix: self._padded(part, tensor) for suffix, tensor in tensors.items()}
        layer.create_weights(tensors, self.allocate)
        self._place(layer, part, {rename.get(suffix, suffix): name for suffix, name in part.names.items()})
        if getattr(old, "bias", None) is not None and "bias" not in tensors:
            self._own_bias(layer, part)

    def _place(self, layer: ParallelLinear, part: Part, names: dict[str, str]) -> None:
        path = part.target.rpartition(".")[0]
        self.replace(path, layer)
        for suffix, name in names.items():
            original = part.tensors.get(suffix) or next(iter(part.tensors.values()))
            self.destination(name, layer.stored[suffix], original.shape, part.param.spec, suffix)

    def _own_bias(self, layer: ParallelLinear, part: Part) -> None:
        """A bias that is a family of its own on disk is placed there when its turn comes."""
        layer.add("bias", nn.Parameter(self.allocate((layer.n,), self.dtype), requires_grad=False))

    def _bias(self, part: Part, holder: nn.Module) -> None:
        """A bias that is a family of its own on disk; a tied head takes it over later."""
        (tensor,), (name,) = part.tensors.values(), part.names.values()
        if isinstance(holder, ParallelLinear):
            kept = holder.stored["bias"]
        else:
            kept = nn.Parameter(self.allocate(self._padded(part, tensor).shape, self.dtype), requires_grad=False)
            holder.register_parameter("bias", kept)
        self.destination(name, kept, tensor.shape, part.param.spec, "bias")

    def _table(self, part: Part, old: nn.Embedding) -> None:
        spec = part.param.spec
        rows = (0, spec.n)
        cut = spec.style == "vocab" and part.at.size > 1
        if cut:
            held = share(parts_of(spec)[0], part.at.size, part.at.rank, self.plan.view.padding)
            rows = (held.start, held.stop)
        group = self.group if cut else ALONE
        layer = VocabParallelEmbedding(old, rows, spec.k, self.dtype_of(part.target), part.param.scheme, group)
        tensors = {suffix: self._padded(part, tensor) for suffix, tensor in part.tensors.items()}
        layer.create_weights(tensors, self.allocate)
        self.replace(part.target.rpartition(".")[0], layer)
        self.assigned.add(part.target)
        self.tables[spec.module] = layer
        for suffix, name in part.names.items():
            self.destination(name, layer.stored[suffix], part.tensors[suffix].shape, spec, suffix)

    def _padded(self, part: Part, tensor: StoredTensor) -> StoredTensor:
        """Rows that the engine allocates: as many on the last rank as on the first."""
        spec = part.param.spec
        if spec.style != "vocab" or not tensor.shape:
            return tensor
        rows = share(parts_of(spec)[0], part.at.size, 0, self.plan.view.padding).allocated
        return tensor._replace(shape=(rows, *tensor.shape[1:]))

    def _plain(self, part: Part, holder: nn.Module, last: str) -> None:
        """A norm, a convolution, a bare parameter: the class's own module keeps it."""
        cut = part.param.spec.style != "replicated" and part.at.size > 1
        by_head = part.param.spec.op == "param" and part.param.spec.component == "attention"
        by_channel = cut and (part.param.spec.component == "mixer" or part.param.spec.op == "norm")
        if cut and not by_head and not by_channel:
            raise MlloadError(
                f"{part.path} is cut over the ranks, and {type(holder).__name__} computes over all of it: "
                "the native engine runs this model at tp 1",
                exit_code=3,
            )
        for suffix, tensor in part.tensors.items():
            name = part.names[suffix]
            own = last if suffix in (part.param.spec.weight, "weight", "") else suffix
            target = self.names.parameter(name)
            if target is not None:
                own = target.rpartition(".")[2]
                holder = self.model.get_submodule(target.rpartition(".")[0])
            shape = tuple(getattr(holder, own).shape)
            if by_head or by_channel:
                shape = tensor.shape
            elif prod(shape) != prod(tensor.shape):
                raise MlloadError(
                    f"{name} has the shape {list(tensor.shape)}, and the class wants {list(shape)}", exit_code=1
                )
            values = self.allocate(shape, self.dtype_of(f"{part.target.rpartition('.')[0]}.{own}"))
            kept = nn.Parameter(values, requires_grad=False)
            buffer = own in holder._buffers
            if buffer:
                holder._buffers[own] = kept.data
            else:
                holder.register_parameter(own, kept)
            self.assigned.add(part.target)
            self.destination(name, kept, tensor.shape, part.param.spec, suffix, fixed=buffer)

    # What is left

    def _tied(self, heads: list[BoundParam]) -> None:
        for param in heads:
            spec = param.spec
            table = self.tables.get(spec.alias_of or "")
            known = self.folder.get(spec.module, spec)
            target = self.names.parameter(known.tensor(known.module))
            if target is None:
                continue
            if table is None:
                self._share_whole(spec, target)
                continue
            rows = next(iter(table.stored.values())).shape[0]
            method: LinearMethod
            if table.scheme is None:
                method = UnquantizedMethod(self.dtype)
            else:
                method = QuantizedMethod(table.scheme, self.dtype)
            head = ParallelLMHead(spec.module, rows, spec.k, spec.n, method, table.group)
            head.share(table.stored)
            bias = getattr(parent_of(self.model, target)[0], "bias", None)
            if isinstance(bias, nn.Parameter):
                head.add("bias", bias)
            self.replace(target.rpartition(".")[0], head)

    def _share_whole(self, spec: ParamSpec, target: str) -> None:
        """A head tied to a table that every rank holds whole, which the class's own module keeps."""
        source = self.names.parameter(f"{spec.alias_of}.weight")
        if source in self.assigned:
            holder, last = parent_of(self.model, target)
            holder.register_parameter(last, self.model.get_parameter(str(source)))

    def _rest(self) -> None:
        """Buffers get the values that the class computes; a parameter that nothing fills is named."""
        left = [name for name, param in self.model.named_parameters() if param.is_meta and name not in self.absent]
        if left:
            from mlload.loader.filling import shown

            raise MlloadError(
                f"the checkpoint has nothing for {len(left)} parameter{'s' if len(left) > 1 else ''} of "
                f"{type(self.model).__name__}: {shown(left)}",
                exit_code=1,
            )
        for param in self.model.parameters():
            param._is_hf_initialized = True
        computed: list[str] = []
        for path, module in self.model.named_modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.is_meta:
                    module._buffers[name] = torch.zeros(buffer.shape, dtype=buffer.dtype, device=self.device)
                    computed.append(path)
        # Each model inside computes by its own rules, and one may compute what its layers hold (Falcon-H1): so the
        # modules themselves are handed to the models around them, and these models to themselves.
        asked: dict[str, set[str]] = {}
        for path in computed:
            inner = next(one for one in _around(path) if hasattr(self.model.get_submodule(one), "_init_weights"))
            asked.setdefault(inner, set()).update((path, inner))
        for inner, paths in asked.items():
            for path in sorted(paths):
                self.model.get_submodule(inner)._init_weights(self.model.get_submodule(path))

    # Small things

    def extent(self, part: Part) -> tuple[int, int]:
        """N and K of this rank."""
        spec = part.param.spec
        cut = sum(share(p, part.at.size, part.at.rank, self.plan.view.padding).allocated for p in parts_of(spec))
        if spec.style == "replicated" or (part.at.size == 1 and spec.style != "vocab"):
            return spec.n, spec.k
        return (spec.n, cut) if spec.style == "row" else (cut, spec.k)

    def dtype_of(self, name: str) -> torch.dtype:
        return torch.float32 if self.wide(name) else self.dtype

    def replace(self, path: str, layer: Replaced) -> None:
        self.model.set_submodule(path, layer)
        self.built.replaced[path] = layer

    def destination(
        self,
        name: str,
        param: nn.Parameter,
        shape: tuple[int, ...],
        spec: ParamSpec,
        suffix: str,
        *,
        index: tuple[Any, ...] = (),
        transpose: bool = False,
        fixed: bool = False,
    ) -> None:
        ref = self.plan.model.checkpoint.tensors.get(name)
        if ref is not None and not ref.shape and prod(shape) == 1:
            shape = ()
        self.built.destinations[name] = Destination(param, shape, index=index, transpose=transpose, fixed=fixed)
        if spec.buffer or not spec.engine:
            self.built.uncounted.add(name)
        if spec.transforms and suffix != "bias":
            self.built.transforms[name] = spec.transforms


def _around(path: str) -> Iterator[str]:
    """ "a.b" -> "a.b", "a", ""."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def _expanded(module: str, layer: int | None, expert: int | None) -> str:
    path = module if layer is None else module.replace("{layer}", str(layer))
    return path if expert is None else path.replace("{expert}", str(expert))


def _kept_wide(model: Any) -> Callable[[str], bool]:
    """The parameters that transformers keeps in float32 whatever the dtype."""
    import re

    strict = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    loose = getattr(model, "_keep_in_fp32_modules", None) or () if model.dtype == torch.float16 else ()
    words = [re.escape(word) for word in (*strict, *loose)]
    pattern = re.compile(rf"(^|\.)({'|'.join(words)})(\.|$)") if words else None
    return lambda name: pattern is not None and pattern.search(name) is not None
