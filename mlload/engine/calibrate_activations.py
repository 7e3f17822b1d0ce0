"""A layerwise model whose linears round what they see as their scheme says, so that perplexity knows of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from mlload.engine.layerwise import Layerwise
from mlload.quant.algorithms import activations
from mlload.quant.spec import Scheme


def round_inputs(runner: Layerwise, quantized: dict[str, Any], read: Callable[[str], Tensor]) -> int:
    """Every linear of `quantized` (weight's disk name -> (path, param)) whose scheme has activations rounds its input
    from now on. Gives how many there are; experts that a class stacks in one tensor are not among them."""
    modules = dict(runner.net.named_modules())
    count = 0
    for there, disk in runner.params.items():
        module = modules.get(there.removesuffix(".weight"))
        if disk not in quantized or not isinstance(module, nn.Linear):
            continue
        path, param = quantized[disk]
        rounded = rounding(param.scheme, path, read)
        if rounded is not None:
            module.register_forward_pre_hook(_first_argument(rounded))
            count += 1
    return count


def _first_argument(rounded: Callable[[Tensor], Tensor]) -> Callable[[Any, Any], Any]:
    return lambda _, args: (rounded(args[0]), *args[1:])


def rounding(scheme: Scheme, path: str, read: Callable[[str], Tensor]) -> Callable[[Tensor], Tensor] | None:
    """What a scheme does to the activations of the linear at `path`; None for nothing. read: a tensor, by its name."""
    if scheme.activation is None:
        return None
    if scheme.kind == "mx":
        return activations.mxfp4 if scheme.activation_bits == 4 else None
    if scheme.strategy == "tensor_group":
        divisor = read(f"{path}.input_global_scale")
        return lambda x: activations.nvfp4(x, divisor.to(x.device))
    if scheme.kind == "int":
        return activations.by_token_int8 if scheme.activation == "dynamic" else None
    if scheme.activation == "static":
        scale = read(f"{path}.input_scale")
        return lambda x: activations.static_float8(x, scale.to(x.device))
    if scheme.block is not None:
        size = scheme.block[1]
        return lambda x: activations.by_group_float8(x, size)
    return activations.by_token_float8
