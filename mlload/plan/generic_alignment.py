"""Alignment of quantized layers for engines that cut a checkpoint as it is stored: a cut must fall between stored
units, of every tensor and every part."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.finding import Finding
from mlload.plan.bound import BoundParam
from mlload.plan.cutting import cut_axis, parts_of, share
from mlload.plan.engine_layers import PlannedLayer
from mlload.plan.rule_findings import found, remainder
from mlload.plan.stored import Stored, axis_length

# What a stored unit is, by the tensor's role -> (code, words).
UNITS = {"weight": ("TP022", "share a stored word"), "zero": ("TP022", "share a stored word of zero points")}
SCALES = ("TP021", "share a scale")


def stored_unit_findings(layers: tuple[PlannedLayer, ...]) -> Iterator[Finding]:
    """Every stored tensor whose units straddle ranks, once per layer, part and unit."""
    for layer in layers:
        size = layer.shape.moe_tp if layer.shape.experts else layer.shape.tp
        if layer.scheme is None or size == 1:
            continue
        seen: set[tuple[str, int, int]] = set()
        for param in layer.params:
            for tensor in param.stored:
                for code, words, per_rank, values in _straddling(param, tensor, size):
                    if (code, per_rank, values) in seen:
                        continue
                    seen.add((code, per_rank, values))
                    yield found(
                        code,
                        layer.where,
                        f"{per_rank} channels per rank, and {remainder(per_rank, values)}: {values} of them {words}",
                        {"per_rank": per_rank, "unit": values, "tp": size},
                        layers=layer.layers,
                    )


def _straddling(param: BoundParam, tensor: Stored, size: int) -> Iterator[tuple[str, str, int, int]]:
    """(code, words, channels per rank, values of a unit) of each part that cannot be cut."""
    spec = param.spec
    axis = cut_axis(spec)
    dim = next((dim for dim in tensor.dims if axis and dim.axis == axis), None)
    if dim is None or dim.values == 1:
        return
    code, words = UNITS.get(tensor.role, SCALES)
    whole = axis_length(spec, axis)
    for part in parts_of(spec):
        held = share(part, size, 0)
        per_rank = held.stop - held.start
        if per_rank % dim.values and per_rank != whole:
            yield code, words, per_rank, dim.values
