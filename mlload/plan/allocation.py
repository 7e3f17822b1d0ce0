"""What an engine allocates for a quantized module on one rank."""

from __future__ import annotations

from dataclasses import replace

from mlload.plan.engine_layers import PlannedLayer
from mlload.plan.placement import Placement, is_expert
from mlload.plan.segments import cut_tensor
from mlload.plan.stored import nbytes
from mlload.profiles import Profile
from mlload.profiles.allocation import allocate

Capability = tuple[int, int]


def quantized_bytes(
    layer: PlannedLayer, experts: int, method: str | None, dtype: str, capability: Capability | None, profile: Profile
) -> dict[str, int]:
    """Bytes by dtype of one module with `experts` experts (0: a dense module).

    By the profile's account of the engine; where it does not know the method, the tensors of the
    files as one rank cuts them.
    """
    shape = replace(layer.shape, experts=experts) if experts else layer.shape
    known = profile.engine == "vllm"
    found = allocate(shape, layer.scheme, method, dtype, capability, profile) if known else None
    return _as_stored(layer, experts) if found is None else found


def _as_stored(layer: PlannedLayer, experts: int) -> dict[str, int]:
    found: dict[str, int] = {}
    size = layer.shape.moe_tp if is_expert(layer.params[0].spec) else layer.shape.tp
    for param in layer.params:
        stacked = "E" in param.spec.axes
        at = Placement(None, size, 0, None, range(experts) if stacked else None)
        each = 1 if stacked else max(experts, 1)
        for tensor in param.stored:
            size_here = nbytes(tensor.dtype, cut_tensor(param, tensor, at).shape) * each
            found[tensor.dtype] = found.get(tensor.dtype, 0) + size_here
    return found
