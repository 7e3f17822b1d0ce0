"""Weights rounded by themselves, with scales for what their linears see: fp8, NVFP4's global one, SmoothQuant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mlload.engine.calibrate_awq import Fold, fold_all, wiring
from mlload.engine.calibrate_inputs import Input
from mlload.quant.algorithms import float4, float8, smoothquant
from mlload.quant.algorithms.moment import output_error
from mlload.quant.formats.registry import get
from mlload.quant.spec import Scheme
from mlload.quantize.recipe import Recipe, has_input_scale
from mlload.quantize.stream import Sheets
from mlload.quantize.weights import as_array, round_to_nearest

if TYPE_CHECKING:
    from mlload.engine.calibrate import Layer, State


def smooth(layer: Layer, inputs: list[Input], alpha: float, sample: Tensor, before: Tensor, state: State) -> None:
    """SmoothQuant, where a norm makes the input; sample: what the layer sees; before: what it made of that."""
    folds = []
    for seen in inputs:
        members = [module for module in seen.modules if module in layer.targets]
        wired = wiring(layer, layer.targets[members[0]]) if members else None
        if wired is None or wired[0].weight.dim() != 1:
            continue
        weight = torch.cat([module.get_parameter("weight") for module in members])
        scale = smoothquant.scale(seen.peak, weight, alpha)
        folds.append(Fold(seen, layer.targets[members[0]], *wired, scale))
    state.notes += fold_all(layer, folds, sample, before, state.scales)


def quantize_rounded(
    members: list[Any], seen: Input, layer: Layer, recipe: Recipe, sheets: Sheets, state: State
) -> None:
    """Writes linears that see one input; what they became is left in their modules."""
    largest: dict[str, float] = {}
    for module in members:
        fused = layer.targets[module].fused
        largest[fused] = max(largest.get(fused, 0.0), float(module.weight.abs().max()))
    for module in members:
        target = layer.targets[module]
        scheme = target.scheme
        shared = largest[target.fused] if scheme.strategy in ("tensor", "tensor_group") else None
        parts = round_to_nearest(module.weight.data.cpu(), scheme, target.dtype, largest=shared, clip=recipe.clip)
        if has_input_scale(scheme):
            parts.update(input_scale(scheme, float(seen.peak.max())))
        arrays = get(scheme.format).pack(scheme, {name: as_array(tensor) for name, tensor in parts.items()})
        for suffix, array in arrays.items():
            sheets.put(f"{target.path}.{suffix}", array.tobytes())
        back = torch.from_numpy(get(scheme.format).dequantize(scheme, arrays, target.n, target.k)).to(
            module.weight.device
        )
        state.outputs[target.path] = output_error(module.weight, back, seen.moment)
        module.weight.data = back


def input_scale(scheme: Scheme, largest: float) -> dict[str, Tensor]:
    """Of activations that reach `largest`; equal for all linears that see one input, so for each fused set."""
    if scheme.strategy == "tensor_group":
        return {"input_global_scale": float4.nv_global(largest)}
    return {"input_scale": torch.tensor([largest / float8.LARGEST]).clamp(min=float8.TINY)}
