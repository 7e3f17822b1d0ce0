"""The shape that a linear had before it was quantized, from the tensors that stand for it.

Layouts as in the formats' own modules; here only what the shape of [N, K] needs (N = out, K = in).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlload.checkpoint.config import ConfigView
from mlload.checkpoint.tensor import TensorRef

WORD_BITS = 32
BYTE_BITS = 8


def unpacked_shape(parts: Mapping[str, TensorRef], config: ConfigView) -> tuple[int, ...] | None:
    """Shape of the plain weight; None where only companions of a weight are there (KV scales, say)."""
    if "" in parts:
        return parts[""].shape
    if "weight" in parts:
        return _weight(parts["weight"], parts)
    if "qweight" in parts:
        return _qweight(parts["qweight"], parts, config)
    if "weight_packed" in parts:
        packed = parts["weight_packed"]
        word = WORD_BITS if packed.dtype == "I32" else BYTE_BITS
        bits = 4 if word == BYTE_BITS else _bits(config)
        return (*packed.shape[:-1], packed.shape[-1] * word // bits) if packed.shape else None
    return parts["in_proj_weight"].shape if "in_proj_weight" in parts else None


def _weight(weight: TensorRef, parts: Mapping[str, TensorRef]) -> tuple[int, ...]:
    """Two 4-bit values fill a byte along K; bitsandbytes flattens, and only its (unread) state knows the shape."""
    packed = weight.dtype in ("U8", "I8") and any(name.startswith("weight_scale") for name in parts)
    if packed and weight.dtype == "U8" and weight.shape:
        return (*weight.shape[:-1], weight.shape[-1] * 2)
    if "absmax" in parts and len(weight.shape) == 2 and weight.shape[1] == 1:
        return (weight.shape[0] * 2, 1)
    return weight.shape


def _qweight(qweight: TensorRef, parts: Mapping[str, TensorRef], config: ConfigView) -> tuple[int, ...] | None:
    """GPTQ packs along K and keeps N; AWQ packs along N and keeps K. The scales [K / G, N] tell N."""
    scales = parts.get("scales")
    if len(qweight.shape) != 2 or scales is None or len(scales.shape) != 2:
        return qweight.shape
    rows, columns = qweight.shape
    n = scales.shape[1]
    return (n, rows * WORD_BITS // _bits(config)) if columns == n else (n, rows)


def _bits(config: ConfigView) -> int:
    """The width that the config declares first, at any depth; 4 where it declares none."""
    found = _declared(config.get("quantization_config"), 6)
    return found if found else 4


def _declared(value: Any, depth: int) -> int | None:
    if not isinstance(value, dict) or depth == 0:
        return None
    for key in ("bits", "num_bits", "w_bit"):
        bits = value.get(key)
        if isinstance(bits, int) and not isinstance(bits, bool) and 0 < bits <= WORD_BITS:
            return bits
    return next((b for inner in value.values() if (b := _declared(inner, depth - 1))), None)
