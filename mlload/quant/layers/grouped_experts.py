"""Whether the experts of a layer run as one grouped kernel, and their tensors as it takes them.

E = experts of this rank, H = hidden size, I = intermediate size of this rank. What an expert computes between its
products is recognised by trying it: classes differ in how they write it, not in what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mlload.kernels.choice.question import Declined
from mlload.kernels.experts import ChosenExperts, ExpertShape, select_grouped
from mlload.quant.formats import spec as stored_spec
from mlload.quant.spec import Dim, Scheme

NAME = "fused_moe"
ALPHA = 1.702
# What a class that clamps calls its bound, and the bound of those that do not say.
LIMIT = 7.0
ODD_ACTIVATION = "what lies between its products is neither silu(gate) * up nor the clamped swiglu with alpha 1.702"


class Stack(NamedTuple):
    """One role ("gate_up", "gate", "up", "down") of all experts: the scheme and this rank's shape of each."""

    role: str
    scheme: Scheme | None
    n: int
    k: int


class Asked(NamedTuple):
    """What came of asking: the kernel, or nothing and why."""

    chosen: ChosenExperts | None
    declined: tuple[Declined, ...]


def ask(
    stacks: Iterable[Stack],
    experts: int,
    gated: Callable[[Tensor], Tensor],
    original: Any,
    dtype: torch.dtype,
    device: torch.device,
    *,
    dealt_out: bool = False,
    one_order: bool = True,
) -> Asked:
    """stacks: of every expert, repeated ones count once; gated: [rows, 2I] -> [rows, I], the class's own.

    dealt_out: others' experts are chosen too; one_order: gate and up of each expert have their columns in one order"""
    if not asks(device):
        return Asked(None, ())
    found = set(stacks)
    reason = uneven(found)
    if reason is None and not one_order:
        reason = "gate and up of an expert have their rows in different orders"
    if reason is None and (reason := unjoined(found)) is None:
        down = next(stack for stack in found if stack.role == "down")
        activation, limit = activation_of(gated, original)
        if not activation:
            reason = ODD_ACTIVATION
        else:
            shape = ExpertShape(experts, down.n, down.k, activation, limit, dealt_out)
            return Asked(*select_grouped(down.scheme, shape, dtype, device))
    return Asked(None, (Declined(NAME, reason),))


def asks(device: torch.device) -> bool:
    """On a CPU there is no grouped kernel to ask for."""
    return device.type == "cuda"


def uneven(stacks: set[Stack]) -> str | None:
    roles = {stack.role for stack in stacks}
    if roles not in ({"gate_up", "down"}, {"gate", "up", "down"}):
        return f"experts of {', '.join(sorted(roles))}, not of gate, up and down"
    if len(stacks) != len(roles) or len({stack.scheme for stack in stacks}) > 1:
        return "experts or their parts are not all of one scheme and one shape"
    return None


def unjoined(stacks: set[Stack]) -> str | None:
    """Why gate and up, stored apart, are not rows of one matrix."""
    gate = next((stack for stack in stacks if stack.role == "gate"), None)
    if gate is None or gate.scheme is None:
        return None
    for tensor in stored_spec(gate.scheme, gate.n, gate.k):
        values = next((dim.values for dim in tensor.dims if dim.axis == "N"), 1)
        if gate.n % values:
            rest = gate.n % values
            return f"{tensor.suffix} holds rows in units of {values}, and up begins at row {gate.n} % {values} = {rest}"
    return None


def joined(
    scheme: Scheme | None, gate: Mapping[str, Tensor], up: Mapping[str, Tensor], n: int, k: int
) -> dict[str, Tensor]:
    """Stored tensors of the [2n, k] linear whose first rows are gate's. n: rows of each."""
    if scheme is None:
        return {name: torch.cat([tensor, up[name]]) for name, tensor in gate.items()}
    dims = {tensor.suffix: tensor for tensor in stored_spec(scheme, n, k)}
    whole: dict[str, Tensor] = {}
    for name, tensor in gate.items():
        other, known = up[name], dims.get(name)
        axis = 0 if name == "bias" else None if known is None else _rows(known.dims)
        if axis is not None:
            whole[name] = torch.cat([tensor, other], axis)
        elif known is not None and known.role in ("scale", "global_scale"):
            # One number for each matrix: of each row from here on.
            whole[name] = torch.cat([one.reshape(-1)[:1].expand(n) for one in (tensor, other)])
        else:
            whole[name] = tensor
    return whole


def _rows(dims: Sequence[Dim]) -> int | None:
    return next((place for place, dim in enumerate(dims) if dim.axis == "N"), None)


def activation_of(gated: Callable[[Tensor], Tensor], original: Any) -> tuple[str, float]:
    """("silu" or "swiglu_oai", its bound); ("", 0) where it is neither. Tried on gates and ups beyond any bound."""
    gates, ups = (torch.linspace(*ends, dtype=torch.float32) for ends in ((-12, 12, 33), (-11, 13, 32)))
    gate, up = torch.meshgrid(gates, ups, indexing="ij")
    gate, up = gate.reshape(1, -1), up.reshape(1, -1)
    said = getattr(original, "limit", LIMIT)
    limit = float(said) if isinstance(said, int | float) else LIMIT
    apart, turns = torch.cat([gate, up], -1), torch.stack([gate, up], -1).flatten(-2)
    cut, kept = gate.clamp(max=limit), up.clamp(-limit, limit)
    if _is(gated, apart, gate * torch.sigmoid(gate) * up):
        return "silu", limit
    if _is(gated, turns, cut * torch.sigmoid(ALPHA * cut) * (kept + 1)):
        return "swiglu_oai", limit
    return "", 0.0


def _is(gated: Callable[[Tensor], Tensor], both: Tensor, wanted: Tensor) -> bool:
    try:
        found = gated(both)
    except (AttributeError, RuntimeError, TypeError, ValueError, IndexError):
        return False
    return found.shape == wanted.shape and torch.allclose(found.float(), wanted, rtol=1e-4, atol=1e-5)


def routed_here(index: Tensor, weights: Tensor, first: int, experts: int) -> tuple[Tensor, Tensor]:
    """What a router says, for the experts [first, first + experts) of this rank.

    index [T, top] of the whole layer; weights [T, top], or [T, E of the layer] by expert -> weights and ids [T, top],
    an id counted from `first`, -1 where the expert is elsewhere
    """
    if weights.shape[-1] != index.shape[-1]:
        weights = weights.gather(-1, index.clamp(0, weights.shape[-1] - 1))
    here = index - first
    return weights, torch.where((here >= 0) & (here < experts), here, -1)
