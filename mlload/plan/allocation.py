"""What an engine allocates for a quantized module."""

from __future__ import annotations

from mlload.plan.engine_layers import PlannedLayer
from mlload.plan.placement import Placement, is_expert
from mlload.plan.segments import cut_tensor
from mlload.plan.stored import nbytes
from mlload.profiles import Profile


def quantized_bytes(
    layer: PlannedLayer, profile: Profile, dtype: str, capability: tuple[int, int] | None
) -> dict[str, int]:
    """Bytes by dtype of one module (of one expert, where there are experts): the tensors of the files as
    one rank cuts them."""
    found: dict[str, int] = {}
    size = layer.shape.moe_tp if is_expert(layer.params[0].spec) else layer.shape.tp
    for param in layer.params:
        at = Placement(None, size, 0, None, range(1) if "E" in param.spec.axes else None)
        for tensor in param.stored:
            found[tensor.dtype] = found.get(tensor.dtype, 0) + nbytes(tensor.dtype, cut_tensor(param, tensor, at).shape)
    return found
