"""MLX's affine quantization: read here so that such a checkpoint is named for what it is.

N = out_features, K = in_features, G = group size, b = bits.
weight uint32 [N, K*b/32], a dense stream along K; scales and biases [N, K/G]; value = q * scale + bias.
Source: mlx's `quantize` and mlx-lm's config (`quantization: {bits, group_size}` beside overrides by path).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlload.checkpoint.tensor import TensorRef
from mlload.quant.formats.fields import positive, width
from mlload.quant.formats.tensors import cut, stacked, words
from mlload.quant.spec import Dim, Scheme, TensorSpec

__all__ = ["cut", "declare", "dequantize", "detect", "pack", "spec", "unpack"]


BITS = (2, 3, 4, 5, 6, 8)


def detect(config: Mapping[str, Any], tensors: Mapping[str, TensorRef]) -> Scheme | None:
    weight, scales = tensors.get("weight"), tensors.get("scales")
    if weight is None or scales is None or weight.dtype != "U32" or "biases" not in tensors:
        return None
    # columns = K * b / 32 and K = groups * G: the declared group gives the width.
    columns, groups = weight.shape[-1], scales.shape[-1]
    for group in (positive(config, "group_size", default=64), 64, 32, 128):
        if groups and columns * 32 % (groups * group) == 0 and columns * 32 // (groups * group) in BITS:
            return _scheme(columns * 32 // (groups * group), group)
    return None


def _scheme(bits: int, group: int) -> Scheme:
    return Scheme("mlx", "affine", bits, "int", "group", group, symmetric=False)


def declare(config: Mapping[str, Any]) -> Callable[[str], Scheme | None]:
    base = _scheme(width(config, "bits", allowed=BITS, default=4), positive(config, "group_size", default=64))
    overrides = {
        name: None
        if value is False
        else _scheme(width(value, "bits", allowed=BITS, default=base.bits), positive(value, "group_size", default=64))
        for name, value in config.items()
        if value is False or (isinstance(value, dict) and "bits" in value)
    }
    return lambda module: overrides.get(module, base)


def spec(scheme: Scheme, n: int, k: int, *, bias: bool = False, experts: int | None = None) -> tuple[TensorSpec, ...]:
    groups = Dim("K", values=scheme.group_size or 64)
    tensors = [
        TensorSpec("weight", "U32", (Dim("N"), words("K", scheme.bits))),
        TensorSpec("scales", None, (Dim("N"), groups), role="scale"),
        TensorSpec("biases", None, (Dim("N"), groups), role="zero"),
    ]
    if bias:
        tensors.append(TensorSpec("bias", None, (Dim("N"),), role="bias"))
    return stacked(tuple(tensors), experts)


def unpack(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> dict[str, Any]:
    """weight: codes uint8 [N, K]; scale and zero (the stored bias, in the weight's own unit) [N, K/G]."""
    from mlload.quant.formats.bitstream import unpack_words

    out = {"weight": unpack_words(tensors["weight"], scheme.bits, k)}
    out |= {"scale": tensors["scales"], "zero": tensors["biases"]}
    return {**out, **{key: tensors[key] for key in ("bias",) if key in tensors}}


def pack(scheme: Scheme, values: Mapping[str, Any]) -> dict[str, Any]:
    import numpy as np

    from mlload.quant.formats.bitstream import pack_words

    out = {"weight": pack_words(values["weight"], scheme.bits).view(np.uint32)}
    out |= {"scales": values["scale"], "biases": values["zero"]}
    return {**out, **{key: values[key] for key in ("bias",) if key in values}}


def dequantize(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> Any:
    from mlload.quant.formats.elements import as_float32, spread

    parts = unpack(scheme, tensors, n, k)
    scale, offset = (spread(as_float32(parts[key]), n, k, scheme.group_size) for key in ("scale", "zero"))
    return parts["weight"].astype("float32") * scale + offset
