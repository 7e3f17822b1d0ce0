"""Elements by dtype of a dense layer's parameters, method by method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlload.profiles.layers import EngineLayer
from mlload.profiles.methods import Method
from mlload.profiles.profile import Profile

if TYPE_CHECKING:
    from mlload.quant.spec import Scheme

Elements = list[tuple[str, int]]


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def linear_elements(
    method: Method,
    layer: EngineLayer,
    dtype: str,
    scheme: Scheme | None,
    capability: tuple[int, int] | None,
    profile: Profile,
) -> Elements:
    """(dtype, elements) of everything that the layer holds on one rank."""
    bias = [(dtype, layer.bias)]
    if scheme is None or method.name.startswith("Unquantized"):
        return [(dtype, layer.n * layer.k), *bias]
    inner = method.scheme or method.name
    if inner.startswith("AutoAWQ"):
        return _awq(method, layer, dtype) + bias
    if inner == "AutoGPTQLinearMethod":
        return _gptq(method, layer, dtype) + bias
    if inner.startswith("CompressedTensorsWNA"):
        return _wna16(method, layer, dtype) + bias
    if inner == "QuarkW4A16Int4":
        return _quark_int4(method, layer, dtype) + bias
    if method.weight.startswith("fp8"):
        return _fp8(method, layer, scheme, pads=method.name == "ModelOptLinearMethod") + bias
    if method.weight.startswith("int8"):
        return _int8(method, layer, scheme) + bias
    if method.weight == "nvfp4":
        return _nvfp4(method, layer, dtype) + bias
    packed = layer.k // 2 if method.bits == 4 else layer.k
    values = "U8" if method.bits == 4 else "F8_E4M3"
    return [(values, layer.n * packed), ("U8", layer.n * (layer.k // 32)), *bias]


def _awq(method: Method, layer: EngineLayer, dtype: str) -> Elements:
    """auto_awq.py:455, :800: packed along N; zero points always."""
    words = layer.n // (32 // method.bits)
    groups = layer.k // (layer.in_full if method.group_size == -1 else method.group_size)
    return [("I32", layer.k * words), ("I32", groups * words), (dtype, groups * layer.n)]


def _gptq(method: Method, layer: EngineLayer, dtype: str) -> Elements:
    """auto_gptq.py:373: packed along K; zero points always; one group is repeated on row-parallel ranks."""
    pack = 32 // method.bits
    row = layer.k != layer.in_full
    whole = method.group_size == -1 and row
    group = layer.in_full if method.group_size == -1 else method.group_size
    groups = (layer.in_full if whole else layer.k) // group
    return [
        ("I32", layer.k // pack * layer.n),
        ("I32", groups * (layer.n // pack)),
        (dtype, groups * layer.n),
    ]


def _wna16(method: Method, layer: EngineLayer, dtype: str) -> Elements:
    """compressed_tensors_wNa16.py:160: words cover fractions of values (3-bit: 32 in 3 words)."""
    group = layer.in_full if method.group_size == -1 else method.group_size
    whole = method.group_size == -1 and layer.k != layer.in_full
    groups = (layer.in_full if whole else layer.k) // group
    zeros = ceil_div(layer.n * method.bits, 32) * groups if method.zero_points else 0
    return [
        ("I32", layer.n * ceil_div(layer.k * method.bits, 32)),
        (dtype, layer.n * groups),
        ("I32", zeros),
        ("I64", 2),
    ]


def _quark_int4(method: Method, layer: EngineLayer, dtype: str) -> Elements:
    """quark_w4a16_int4.py:86: [K, N / 8] words; zero points always."""
    groups = 1 if method.group_size == -1 else layer.k // method.group_size
    words = layer.n // 8
    return [("I32", layer.k * words), ("I32", groups * words), (dtype, groups * layer.n)]


def _fp8(method: Method, layer: EngineLayer, scheme: Scheme, *, pads: bool) -> Elements:
    """fp8_utils.py:1396, modelopt.py:2136: one float32 scale a part, a row or a block."""
    parts = len(layer.parts)
    if method.block:
        bn, bk = method.block
        columns = layer.k // bk if pads else ceil_div(layer.k, bk)
        scales = ceil_div(layer.n, bn) * columns
    else:
        scales = layer.n if method.weight == "fp8_channel" else parts
    static = parts if scheme.activation == "static" and not method.block else 0
    return [("F8_E4M3", layer.n * layer.k), ("F32", scales + static)]


def _int8(method: Method, layer: EngineLayer, scheme: Scheme) -> Elements:
    """compressed_tensors_w8a8_int8.py:55, quark_w8a8_int8.py:70: Quark stores zero points beside its scales."""
    channel = method.weight == "int8_channel"
    scales = layer.n if channel else len(layer.parts)
    static = 1 if scheme.activation == "static" else 0
    quark = method.scheme == "QuarkW8A8Int8"
    zeros = scales + static if quark else static * (not scheme.option("input_symmetric", True))
    return [("I8", layer.n * layer.k), ("F32", scales + static), ("I8", zeros)]


def _nvfp4(method: Method, layer: EngineLayer, dtype: str) -> Elements:
    """compressed_tensors_w4a4_nvfp4.py:56, modelopt.py:2018: two values a byte, a float8 scale for each 16."""
    parts = len(layer.parts)
    scales = layer.n * (layer.k // method.group_size)
    out: Elements = [("U8", layer.n * (layer.k // 2)), ("F8_E4M3", scales), ("F32", parts)]
    if method.activation:
        out.append(("F32", parts))
    elif method.name == "ModelOptLinearMethod":
        # A weight-only export may still carry input scales; they are loaded and dropped (modelopt.py:2532).
        out.append((dtype, parts))
    return out
