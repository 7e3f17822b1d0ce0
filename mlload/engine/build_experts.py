"""Routed experts: into the stacks of the class where they are plain and cut, else (packed, or dealt out whole to the
ranks) into a layer that keeps each by itself."""

from __future__ import annotations

import inspect
from math import prod
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from mlload.checkpoint.finding import MlloadError
from mlload.engine.layerwise_experts import role_of
from mlload.engine.parts import Part
from mlload.plan.mesh import experts_of
from mlload.quant.layers.experts import ExpertTensors, QuantizedExperts
from mlload.quant.layers.plain_experts import PlainExperts

if TYPE_CHECKING:
    from mlload.engine.build import Builder


def place_experts(builder: Builder, path: str, members: list[Part]) -> None:
    original = builder.model.get_submodule(path)
    if any(part.param.scheme is not None for part in members) or builder.plan.mesh.ep:
        _own_experts(builder, path, original, members)
        return
    for part in members:
        _stacked(builder, path, original, part)
    builder.built.replaced[path] = PlainExperts(original, builder.dtype)
    if builder.group.size > 1:
        original.register_forward_hook(lambda _module, _inputs, output: builder.group.sum(output))


def _stacked(builder: Builder, path: str, original: nn.Module, part: Part) -> None:
    """A plain tensor of experts, or of one expert, into the class's stack."""
    spec = part.param.spec
    for suffix, tensor in part.tensors.items():
        name = part.names[suffix]
        own = builder.names.parameter(name if part.expert is None else _first_expert(builder, part, suffix))
        own = own if own is not None else part.target
        last = own.rpartition(".")[2]
        whole = builder.names.shape(own)
        role = role_of(spec)
        shape = _stack_shape(builder, whole, part, role, original)
        if own not in builder.assigned:
            param = nn.Parameter(builder.allocate(shape, builder.dtype_of(own)), requires_grad=False)
            setattr(original, last, param)
            builder.assigned.add(own)
        param = getattr(original, last)
        index: tuple[Any, ...] = ()
        if part.expert is not None:
            index = (part.expert,)
        if role in ("gate", "up") and prod(param.shape[1:]) == 2 * prod(tensor.shape[-2:]):
            half = tensor.shape[-2]
            rows = slice(0, half) if role == "gate" else slice(half, 2 * half)
            index = (*(index or (slice(None),)), rows)
        if spec.style == "row" and len(tensor.shape) < len(spec.shape) and builder.group.rank:
            # The bias of a row-parallel linear is whole on every rank, and is added once.
            param.weight_loader = _no_values
        there = param[index] if index else param
        transpose = there.dim() > 1 and tuple(there.shape) != tensor.shape
        builder.destination(name, param, tensor.shape, spec, suffix, index=index, transpose=transpose)


def _first_expert(builder: Builder, part: Part, suffix: str) -> str:
    spec = builder.folder.get(part.param.spec.module, part.param.spec)
    name = part.names[suffix]
    tail = spec.module.partition("{expert}")[2]
    return name.replace(f"{part.expert}{tail}", f"0{tail}")


def _stack_shape(
    builder: Builder, whole: tuple[int, ...], part: Part, role: str, original: nn.Module
) -> tuple[int, ...]:
    """Of the class's stack on this rank: the cut dim divided, in the class's orientation."""
    spec = part.param.spec
    here = dict(zip("NK", builder.extent(part), strict=True))
    axis = "K" if spec.style == "row" else "N"
    full = {"N": spec.n, "K": spec.k}
    if here[axis] == full[axis]:
        return whole
    if len(whole) == 2:  # biases of all experts
        return whole if spec.style == "row" else (whole[0], whole[1] * here["N"] // full["N"])
    transposed = getattr(original, "is_transposed", spec.axes == ("E", "K", "N"))
    for flipped in (transposed, not transposed):
        for count in (1, 2) if role in ("gate", "up") else (1,):
            if whole[1:] == _oriented(count * full["N"], full["K"], flipped):
                return (whole[0], *_oriented(count * here["N"], here["K"], flipped))
    raise MlloadError(f"{part.path} has no place in a stack of {list(whole)}", exit_code=3)


def _own_experts(builder: Builder, path: str, original: nn.Module, members: list[Part]) -> None:
    accepts = list(inspect.signature(type(original).forward).parameters)
    if len(accepts) < 4 and "args" not in accepts:
        raise MlloadError(
            f"{path}: quantized or dealt-out experts of the class {type(original).__name__} are not supported",
            exit_code=3,
        )
    if getattr(original, "has_post_expert_norm", False):
        raise MlloadError(
            f"{path}: {type(original).__name__} has a norm behind its experts, and these are quantized or dealt out",
            exit_code=3,
        )
    mesh = builder.plan.mesh
    total = max(part.param.expert_total for part in members)
    held = experts_of(total, mesh.moe_size, mesh.tp_rank(builder.rank)) if mesh.ep else range(total)
    linears: list[ExpertTensors] = []
    for part in members:
        spec, scheme = part.param.spec, part.param.scheme
        n, k = builder.extent(part)
        params: dict[str, nn.Parameter] = {}
        for suffix, tensor in part.tensors.items():
            bias = suffix in ("bias", spec.bias)
            dtype = builder.dtype if scheme is None or bias else tensor.dtype
            param = nn.Parameter(builder.allocate(tensor.shape, dtype), requires_grad=False)
            params["bias" if bias else suffix] = param
            builder.destination(part.names[suffix], param, tensor.shape, spec, suffix)
        if scheme is None and "weight" not in params:
            params["weight"] = params.pop(next(iter(params)))
        transposed = spec.axes[-2:] == ("K", "N")
        linears.append(ExpertTensors(role_of(spec), part.expert, scheme, n, k, params, transposed))
    for name, _ in list(original.named_parameters(recurse=False)):
        original.register_parameter(name, None)
    layer = QuantizedExperts(original, held, linears, builder.dtype, builder.group, whole=mesh.ep)
    builder.replace(path, layer)


def _oriented(n: int, k: int, transposed: bool) -> tuple[int, int]:
    return (k, n) if transposed else (n, k)


def _no_values(param: nn.Parameter, part: Tensor, piece: Tensor) -> None:
    part.zero_()
