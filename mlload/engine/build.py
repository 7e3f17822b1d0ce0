"""A transformers class with our layers in it: built on the meta device, cut for one rank, its weights allocated.

Every family of the plan names modules on disk; transformers' own renamings say which module of the class that is.
nn.Linear, tables, heads and experts are replaced; of everything else the rank's own shape is allocated.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from mlload.checkpoint.finding import MlloadError
from mlload.engine.heads import Heads, divide_heads
from mlload.engine.names import Names, folder_modules, parent_of
from mlload.loader.destination import Destination
from mlload.loader.dtypes import torch_dtype
from mlload.plan.bound import BoundParam
from mlload.plan.cutting import parts_of, share
from mlload.plan.params import ParamSpec
from mlload.plan.placement import Placement, is_expert, place
from mlload.plan.plan import Plan
from mlload.plan.segments import cut_tensor
from mlload.quant.layers.embedding import VocabParallelEmbedding
from mlload.quant.layers.experts import ExpertTensors, QuantizedExperts
from mlload.quant.layers.group import Group
from mlload.quant.layers.linear import ParallelLinear, ParallelLMHead
from mlload.quant.layers.method import LinearMethod, QuantizedMethod, StoredTensor, UnquantizedMethod

Replaced = ParallelLinear | VocabParallelEmbedding | QuantizedExperts


@dataclass
class Built:
    """model: to run once it is filled; destinations: of the rank's own tensors; replaced: layers with a kernel
    transforms: own tensor -> what is to be done to its rows after loading
    beside: tensors that belong to no module of the class: scales of the KV cache, stored rotary tables"""

    model: Any
    destinations: dict[str, Destination] = field(default_factory=dict)
    replaced: dict[str, Replaced] = field(default_factory=dict)
    transforms: dict[str, tuple[str, ...]] = field(default_factory=dict)
    beside: dict[str, nn.Parameter] = field(default_factory=dict)


@dataclass
class Part:
    """One module of the plan on this rank: disk path, the class's parameter, and the tensors that stand for it."""

    param: BoundParam
    at: Placement
    path: str
    target: str
    tensors: dict[str, StoredTensor]
    names: dict[str, str]
    expert: int | None = None


def meta_model(plan: Plan, dtype: torch.dtype) -> Any:
    """The class on the meta device. Raises MlloadError where transformers has none for this config."""
    import transformers

    raw = {k: v for k, v in plan.model.config.raw.items() if k not in ("quantization_config", "auto_map")}
    model_type = str(raw.pop("model_type", "") or plan.model.config.model_type)
    try:
        config = transformers.AutoConfig.for_model(model_type, **raw)
        config._experts_implementation = "eager"
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, dtype=dtype, attn_implementation="sdpa"
            )
    except (ValueError, KeyError, TypeError) as error:
        if "scaled_dot_product" in str(error):
            with torch.device("meta"):
                model = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                    config, dtype=dtype, attn_implementation="eager"
                )
        else:
            line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise MlloadError(
                f"transformers {transformers.__version__} builds no causal language model of type "
                f"{model_type!r}: {line}",
                exit_code=3,
            ) from error
    return model.eval()


class Builder:
    """Builds one rank's model."""

    def __init__(self, plan: Plan, rank: int, device: torch.device, dtype: torch.dtype, group: Group) -> None:
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
        self.tables: dict[str, VocabParallelEmbedding] = {}
        self.assigned: set[str] = set()

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def build(self) -> Built:
        parts, experts, heads = self._parts()
        with torch.no_grad():
            for part in parts:
                self._module(part)
            for path, members in experts.items():
                self._experts(path, members)
            self._tied(heads)
            self._divide_heads(parts)
            self._rest()
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

    def _beside(self, path: str, shapes: dict[str, StoredTensor]) -> None:
        for suffix, tensor in shapes.items():
            kept = nn.Parameter(torch.zeros(tensor.shape, dtype=tensor.dtype), requires_grad=False)
            self.built.beside[path + suffix] = kept
            self.built.destinations[path + suffix] = Destination(kept, tensor.shape)

    # One module

    def _module(self, part: Part) -> None:
        holder, last = parent_of(self.model, part.target)
        kind = type(holder).__name__
        if isinstance(holder, nn.Embedding) and part.param.spec.op == "embedding":
            self._table(part, holder)
        elif isinstance(holder, nn.Linear) or kind == "Conv1D":
            self._linear(part, holder)
        elif part.param.scheme is not None:
            raise MlloadError(f"{part.path} is quantized, and {kind} is not replaced by a quantized layer", exit_code=3)
        else:
            self._plain(part, holder, last)

    def _linear(self, part: Part, old: nn.Module) -> None:
        spec, scheme = part.param.spec, part.param.scheme
        n, k = self._extent(part)
        method: LinearMethod
        if scheme is None:
            method = UnquantizedMethod(self._dtype(part.target), transposed=spec.axes == ("K", "N"))
        else:
            method = QuantizedMethod(scheme, self.dtype, spec.transforms)
        layer: ParallelLinear
        if spec.style == "vocab":
            layer = ParallelLMHead(part.path, n, k, spec.n, method, self.group)
        else:
            layer = ParallelLinear(part.path, n, k, spec.style, method, self.group)
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
        self._replace(path, layer)
        for suffix, name in names.items():
            original = part.tensors.get(suffix) or next(iter(part.tensors.values()))
            self._destination(name, layer.stored[suffix], original.shape, part.param.spec, suffix)

    def _own_bias(self, layer: ParallelLinear, part: Part) -> None:
        """A bias that is a family of its own on disk is placed there when its turn comes."""
        layer.add("bias", nn.Parameter(self.allocate((layer.n,), self.dtype), requires_grad=False))

    def _table(self, part: Part, old: nn.Embedding) -> None:
        spec = part.param.spec
        rows = (0, spec.n)
        cut = spec.style == "vocab" and part.at.size > 1
        if cut:
            held = share(parts_of(spec)[0], part.at.size, part.at.rank, self.plan.view.padding)
            rows = (held.start, held.stop)
        group = self.group if cut else Group()
        layer = VocabParallelEmbedding(old, rows, spec.k, self._dtype(part.target), part.param.scheme, group)
        tensors = {suffix: self._padded(part, tensor) for suffix, tensor in part.tensors.items()}
        layer.create_weights(tensors, self.allocate)
        self._replace(part.target.rpartition(".")[0], layer)
        self.assigned.add(part.target)
        self.tables[spec.module] = layer
        for suffix, name in part.names.items():
            self._destination(name, layer.stored[suffix], part.tensors[suffix].shape, spec, suffix)

    def _padded(self, part: Part, tensor: StoredTensor) -> StoredTensor:
        """Rows that the engine allocates: as many on the last rank as on the first."""
        spec = part.param.spec
        if spec.style != "vocab" or not tensor.shape:
            return tensor
        rows = share(parts_of(spec)[0], part.at.size, 0, self.plan.view.padding).allocated
        return tensor._replace(shape=(rows, *tensor.shape[1:]))

    def _plain(self, part: Part, holder: nn.Module, last: str) -> None:
        """A norm, a convolution, a bare parameter: the class's own module keeps it."""
        if part.param.spec.style != "replicated" and part.at.size > 1:
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
            if isinstance(holder, ParallelLinear):
                self._destination(name, holder.stored["bias"], tensor.shape, part.param.spec, suffix)
                continue
            shape = tuple(getattr(holder, own).shape)
            if prod(shape) != prod(tensor.shape):
                raise MlloadError(
                    f"{name} has the shape {list(tensor.shape)}, and the class wants {list(shape)}", exit_code=1
                )
            values = self.allocate(shape, self._dtype(f"{part.target.rpartition('.')[0]}.{own}"))
            kept = nn.Parameter(values, requires_grad=False)
            if own in holder._buffers:
                holder._buffers[own] = kept.data
            else:
                holder.register_parameter(own, kept)
            self.assigned.add(part.target)
            self._destination(name, kept, tensor.shape, part.param.spec, suffix)

    # Experts

    def _experts(self, path: str, members: list[Part]) -> None:
        original = self.model.get_submodule(path)
        if any(part.param.scheme is not None for part in members):
            self._quantized_experts(path, original, members)
            return
        for part in members:
            self._stacked(path, original, part)
        if self.group.size > 1:
            original.register_forward_hook(lambda _module, _inputs, output: self.group.sum(output))

    def _stacked(self, path: str, original: nn.Module, part: Part) -> None:
        """A plain tensor of experts, or of one expert, into the class's stack."""
        spec = part.param.spec
        for suffix, tensor in part.tensors.items():
            name = part.names[suffix]
            own = self.names.parameter(name if part.expert is None else self._first_expert(part, suffix))
            own = own if own is not None else part.target
            last = own.rpartition(".")[2]
            whole = self.names.shape(own)
            role = _role(spec)
            shape = self._stack_shape(whole, part, tensor, role)
            if own not in self.assigned:
                param = nn.Parameter(self.allocate(shape, self._dtype(own)), requires_grad=False)
                setattr(original, last, param)
                self.assigned.add(own)
            param = getattr(original, last)
            index: tuple[Any, ...] = ()
            if part.expert is not None:
                index = (part.expert,)
            if role in ("gate", "up") and prod(param.shape[1:]) == 2 * prod(tensor.shape[-2:]):
                half = tensor.shape[-2]
                rows = slice(0, half) if role == "gate" else slice(half, 2 * half)
                index = (*(index or (slice(None),)), rows)
            if spec.style == "row" and len(tensor.shape) < len(spec.shape) and self.group.rank:
                # The bias of a row-parallel linear is whole on every rank, and is added once.
                param.weight_loader = _no_values
            there = param[index] if index else param
            transpose = there.dim() > 1 and tuple(there.shape) != tensor.shape
            self._destination(name, param, tensor.shape, spec, suffix, index=index, transpose=transpose)

    def _first_expert(self, part: Part, suffix: str) -> str:
        spec = self.folder.get(part.param.spec.module, part.param.spec)
        name = part.names[suffix]
        tail = spec.module.partition("{expert}")[2]
        return name.replace(f"{part.expert}{tail}", f"0{tail}")

    def _stack_shape(self, whole: tuple[int, ...], part: Part, tensor: StoredTensor, role: str) -> tuple[int, ...]:
        """Of the class's stack on this rank: the cut dim divided, in the class's orientation."""
        spec = part.param.spec
        full = {"N": spec.n, "K": spec.k}
        here = dict(zip("NK", self._extent(part), strict=True))
        axis = "K" if spec.style == "row" else "N"
        if here[axis] == full[axis]:
            return whole
        for dim in range(len(whole) - 1, 0, -1):
            for count in (1, 2):
                if whole[dim] == count * full[axis] and (count == 1 or role in ("gate", "up")):
                    return (*whole[:dim], count * here[axis], *whole[dim + 1 :])
        return whole

    def _quantized_experts(self, path: str, original: nn.Module, members: list[Part]) -> None:
        accepts = list(inspect.signature(type(original).forward).parameters)
        if len(accepts) < 4 and "args" not in accepts:
            raise MlloadError(
                f"{path}: quantized experts of the class {type(original).__name__} are not supported", exit_code=3
            )
        linears: list[ExpertTensors] = []
        count = 0
        for part in members:
            spec, scheme = part.param.spec, part.param.scheme
            n, k = self._extent(part)
            count = max(count, part.param.expert_total)
            params: dict[str, nn.Parameter] = {}
            for suffix, tensor in part.tensors.items():
                bias = suffix in ("bias", spec.bias)
                dtype = self.dtype if scheme is None or bias else tensor.dtype
                param = nn.Parameter(self.allocate(tensor.shape, dtype), requires_grad=False)
                params["bias" if bias else suffix] = param
                self._destination(part.names[suffix], param, tensor.shape, spec, suffix)
            if scheme is None and "weight" not in params:
                params["weight"] = params.pop(next(iter(params)))
            transposed = spec.axes[-2:] == ("K", "N")
            linears.append(ExpertTensors(_role(spec), part.expert, scheme, n, k, params, transposed))
        for name, _ in list(original.named_parameters(recurse=False)):
            original.register_parameter(name, None)
        self._replace(path, QuantizedExperts(original, count, linears, self.dtype, self.group))

    # What is left

    def _tied(self, heads: list[BoundParam]) -> None:
        for param in heads:
            spec = param.spec
            table = self.tables.get(spec.alias_of or "")
            known = self.folder.get(spec.module, spec)
            target = self.names.parameter(known.tensor(known.module))
            if table is None or target is None:
                continue
            rows = next(iter(table.stored.values())).shape[0]
            method: LinearMethod
            if table.scheme is None:
                method = UnquantizedMethod(self.dtype)
            else:
                method = QuantizedMethod(table.scheme, self.dtype)
            head = ParallelLMHead(spec.module, rows, spec.k, spec.n, method, table.group)
            head.share(table.stored)
            self._replace(target.rpartition(".")[0], head)

    def _divide_heads(self, parts: list[Part]) -> None:
        """Attention modules whose projections are cut count their own heads."""
        if self.plan.mesh.tp == 1:
            return
        found: dict[str, dict[str, tuple[int, int, int]]] = {}
        for part in parts:
            if part.param.spec.component == "mixer" and part.param.spec.style != "replicated":
                raise MlloadError(
                    f"{part.path}: mixers with a state (Mamba, gated delta) run at tp 1 in the native engine",
                    exit_code=3,
                )
            if part.param.spec.component != "attention" or part.param.spec.style != "column":
                continue
            module = part.target.rpartition(".")[0].rpartition(".")[0]
            for piece in part.param.spec.parts:
                if piece.unit > 1:
                    here = share(piece, part.at.size, part.at.rank).allocated
                    role = piece.role if piece.role in ("k", "v") else "q"
                    found.setdefault(module, {}).setdefault(
                        role, (piece.length // piece.unit, here // piece.unit, piece.unit)
                    )
        for module, roles in found.items():
            if "q" not in roles:
                continue
            query, keys = roles["q"], roles.get("k", (0, 0, 0))
            divide_heads(self.model.get_submodule(module), Heads(query[0], query[1], keys[0], keys[1], query[2]))
        if any(hasattr(module, "build_alibi_tensor") for module in self.model.modules()):
            raise MlloadError("models with ALiBi positions run at tp 1 in the native engine", exit_code=3)

    def _rest(self) -> None:
        """Buffers get the values that the class computes; a parameter that nothing fills is named."""
        left = [name for name, param in self.model.named_parameters() if param.is_meta]
        if left:
            from mlload.loader.filling import shown

            raise MlloadError(
                f"the checkpoint has nothing for {len(left)} parameter{'s' if len(left) > 1 else ''} of "
                f"{type(self.model).__name__}: {shown(left)}",
                exit_code=1,
            )
        for param in self.model.parameters():
            param._is_hf_initialized = True
        for module in self.model.modules():
            computed = False
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.is_meta:
                    module._buffers[name] = torch.zeros(buffer.shape, dtype=buffer.dtype, device=self.device)
                    computed = True
            if computed:
                self.model._init_weights(module)

    # Small things

    def _extent(self, part: Part) -> tuple[int, int]:
        """N and K of this rank."""
        spec = part.param.spec
        cut = sum(share(p, part.at.size, part.at.rank, self.plan.view.padding).allocated for p in parts_of(spec))
        if spec.style == "replicated" or (part.at.size == 1 and spec.style != "vocab"):
            return spec.n, spec.k
        return (spec.n, cut) if spec.style == "row" else (cut, spec.k)

    def _dtype(self, name: str) -> torch.dtype:
        return torch.float32 if self.wide(name) else self.dtype

    def _replace(self, path: str, layer: Replaced) -> None:
        self.model.set_submodule(path, layer)
        self.built.replaced[path] = layer

    def _destination(
        self,
        name: str,
        param: nn.Parameter,
        shape: tuple[int, ...],
        spec: ParamSpec,
        suffix: str,
        *,
        index: tuple[Any, ...] = (),
        transpose: bool = False,
    ) -> None:
        ref = self.plan.model.checkpoint.tensors.get(name)
        if ref is not None and not ref.shape and prod(shape) == 1:
            shape = ()
        self.built.destinations[name] = Destination(param, shape, index=index, transpose=transpose)
        if spec.transforms and suffix != "bias":
            self.built.transforms[name] = spec.transforms


def _expanded(module: str, layer: int | None, expert: int | None) -> str:
    path = module if layer is None else module.replace("{layer}", str(layer))
    return path if expert is None else path.replace("{expert}", str(expert))


def _role(spec: ParamSpec) -> str:
    if spec.style == "row":
        return "down"
    roles = [part.role for part in spec.parts]
    if len(roles) > 1:
        return "gate_up"
    return "gate" if roles == ["gate"] else "up"


def _no_values(param: nn.Parameter, part: Tensor, piece: Tensor) -> None:
    part.zero_()


def _kept_wide(model: Any) -> Callable[[str], bool]:
    """The parameters that transformers keeps in float32 whatever the dtype."""
    import re

    strict = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    loose = getattr(model, "_keep_in_fp32_modules", None) or () if model.dtype == torch.float16 else ()
    words = [re.escape(word) for word in (*strict, *loose)]
    pattern = re.compile(rf"(^|\.)({'|'.join(words)})(\.|$)") if words else None
    return lambda name: pattern is not None and pattern.search(name) is not None


__all__ = ["Builder", "Built", "meta_model"]
