"""compressed-tensors: what llm-compressor writes; one config, several layouts.

N = out_features, K = in_features, G = group size, b = bits, (bn, bk) = block.
pack-quantized: weight_packed int32 [N, ceil(K*b/32)], a dense stream of values offset by 2**(b-1);
    weight_scale [N, K/G] ([N, 1] by channel); weight_zero_point int32 [ceil(N*b/32), K/G] (asymmetric only, offset
    likewise); weight_shape int64 [2] = (N, K); weight_g_idx int32 [K] (actorder "group" only)
int-quantized, naive-quantized: weight int8 [N, K]; float-quantized: weight f8_e4m3 [N, K];
    weight_scale [1], [N, 1], [N, K/G] or [ceil(N/bn), ceil(K/bk)]; weight_zero_point int8 like the scale;
    input_scale, input_zero_point [1] with static activations
nvfp4-pack-quantized: weight_packed uint8 [N, K/2], weight_scale f8_e4m3 [N, K/16], weight_global_scale f32 [1]
    which divides, input_global_scale f32 [1] with 4-bit activations
mxfp4-, mxfp6-pack-quantized: weight_packed uint8 [N, K/2] or [N, 3K/4]; mxfp8-quantized: weight f8_e4m3 [N, K];
    weight_scale uint8 e8m0 [N, K/32]
marlin-24, sparse-*: withdrawn layouts: recognised, not read.
Sources: compressed_tensors' compressors/* and quantization/*, vLLM's compressed_tensors.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.tensor import TensorRef
from mlload.quant.formats.compressed_tensors_config import SPARSE, declare, group_of
from mlload.quant.formats.fields import text
from mlload.quant.formats.fp8 import FP8_DTYPES, guess_block
from mlload.quant.formats.tensors import cut, group_dim, stacked, words
from mlload.quant.spec import Dim, Scheme, TensorSpec

__all__ = ["cut", "declare", "dequantize", "detect", "pack", "spec", "unpack"]

MX_ELEMENTS = {"mxfp4-pack-quantized": 4, "mxfp6-pack-quantized": 6, "mxfp8-quantized": 8}


def detect(config: Mapping[str, Any], tensors: Mapping[str, TensorRef]) -> Scheme | None:
    """What config groups add (symmetry, activations) comes from the first group of the same layout."""
    packed, weight, scale = tensors.get("weight_packed"), tensors.get("weight"), tensors.get("weight_scale")
    if "bitmask" in tensors or "scale_packed" in tensors:
        layout = text(config, "format").lower()
        sparse = "marlin-24" if "scale_packed" in tensors else "sparse-bitmask"
        return Scheme("compressed_tensors", layout if layout in SPARSE else sparse, 4 if packed is not None else 16)
    if packed is not None and len(packed.shape) >= 2:
        if packed.dtype == "U8":
            return _fp4(config, tensors, packed, scale)
        return _packed_int(config, tensors, packed, scale)
    if weight is None or scale is None or len(weight.shape) < 2:
        return None
    n, k = weight.shape[-2:]
    if weight.dtype == "I8":
        return _grid(config, tensors, "int-quantized", "int", n, k, scale)
    if weight.dtype in FP8_DTYPES:
        if scale.dtype in ("U8", "F8_E8M0") and len(scale.shape) >= 2 and scale.shape[-1] * 32 == k:
            return _with_group(config, Scheme("compressed_tensors", "mxfp8-quantized", 8, "mx", "group", 32), tensors)
        return _grid(config, tensors, "float-quantized", "float", n, k, scale)
    return None


def _fp4(
    config: Mapping[str, Any], tensors: Mapping[str, TensorRef], packed: TensorRef, scale: TensorRef | None
) -> Scheme:
    per_row = packed.shape[-1]
    groups = scale.shape[-1] if scale is not None and len(scale.shape) >= 2 else 0
    if "weight_global_scale" in tensors or (groups and per_row * 2 == groups * 16):
        base = Scheme("compressed_tensors", "nvfp4-pack-quantized", 4, "float", "tensor_group", 16)
    elif groups and per_row * 4 == groups * 32 * 3:
        base = Scheme("compressed_tensors", "mxfp6-pack-quantized", 6, "mx", "group", 32)
    else:
        base = Scheme("compressed_tensors", "mxfp4-pack-quantized", 4, "mx", "group", 32)
    return _with_group(config, base, tensors)


def _packed_int(
    config: Mapping[str, Any], tensors: Mapping[str, TensorRef], packed: TensorRef, scale: TensorRef | None
) -> Scheme | None:
    if packed.dtype != "I32" or scale is None:
        return None
    columns = packed.shape[-1]
    count = scale.shape[-1] if len(scale.shape) >= 2 else 1
    group = group_of(config, "int")
    bits, size = (group.bits, group.group_size) if group else (4, 128)
    if count > 1:
        # columns = K * b / 32 with K = count * G: the declared width and group must explain the shape, else the
        # likeliest width that does.
        if not size or size < 0 or -(-count * size * bits // 32) != columns:
            choices = [(b, columns * 32 // (b * count)) for b in (bits, 4, 8, 2, 3, 5, 6, 7) if columns * 32 % b == 0]
            fitting = [(b, g) for b, g in choices if g in (16, 32, 64, 128, 256) and count * g * b == columns * 32]
            kept = [(b, g) for b, g in fitting if g == size] or fitting
            if kept:
                bits, size = kept[0]
    elif not size or size < 0 or -(-size * bits // 32) != columns:
        size = -1  # else one declared group is as wide as the row
    zero = tensors.get("weight_zero_point")
    if zero is not None and zero.dtype == "I32" and packed.shape[-2]:
        n = packed.shape[-2]
        bits = next((b for b in (bits, 4, 8, 2, 3, 5, 6, 7) if -(-n * b // 32) == zero.shape[-2]), bits)
    scheme = Scheme(
        format="compressed_tensors",
        layout="pack-quantized",
        bits=bits,
        strategy="channel" if size == -1 else "group",
        group_size=size,
        symmetric=zero is None,
        act_order="weight_g_idx" in tensors,
    )
    return _with_group(config, scheme, tensors)


def of_known_width(
    config: Mapping[str, Any], scheme: Scheme, tensors: Mapping[str, TensorRef], widths: Collection[int]
) -> Scheme:
    """Packed integers of width b in groups of G have the shapes of 2b in groups of G / 2. A linear's K is the width of
    something else in the model (the outputs of another linear, a norm), which tells them apart where the declared
    ones do not fit.

    Args:
        widths: sizes that occur in the checkpoint, `Census.widths`.
    """
    packed, scale = tensors.get("weight_packed"), tensors.get("weight_scale")
    declared = group_of(config, "int")
    if declared is not None and (declared.bits, declared.group_size) == (scheme.bits, scheme.group_size):
        return scheme
    if scheme.layout != "pack-quantized" or not scheme.group_size or packed is None or scale is None:
        return scheme
    count, words = scale.shape[-1], packed.shape[-1]
    if scheme.group_size < 0 or not count or words * 32 // scheme.bits in widths:
        return scheme
    for bits in (4, 8, 2, 3, 6):
        k, rest = divmod(words * 32, bits)
        if rest == 0 and k % count == 0 and k in widths:
            return replace(scheme, bits=bits, group_size=k // count)
    return scheme


def _grid(
    config: Mapping[str, Any],
    tensors: Mapping[str, TensorRef],
    layout: str,
    kind: Any,
    n: int,
    k: int,
    scale: TensorRef,
) -> Scheme:
    """int8 or fp8 elements: how fine the scales are follows from their shape."""
    group = group_of(config, kind)
    block = None
    size: int | None = None
    shape = scale.shape[-2:]
    if shape in ((), (1,), (1, 1)):
        strategy = "tensor"
    elif shape in ((n, 1), (n,)):
        strategy, size = "channel", -1
    elif len(shape) == 2 and shape[0] == n and k % shape[1] == 0:
        strategy, size = "group", k // shape[1]
    elif len(shape) == 2 and shape[0] and shape[1]:
        strategy = "block"
        block = group.block if group and group.block else (128, 128)
        if (-(-n // block[0]), -(-k // block[1])) != shape:
            block = (guess_block(n, shape[0]), guess_block(k, shape[1]))
    else:
        strategy = "channel"
    scheme = Scheme(
        format="compressed_tensors",
        layout=layout,
        bits=8,
        kind=kind,
        strategy=strategy,
        group_size=size,
        block=block,
        symmetric="weight_zero_point" not in tensors,
    )
    return _with_group(config, scheme, tensors)


def _with_group(config: Mapping[str, Any], scheme: Scheme, tensors: Mapping[str, TensorRef]) -> Scheme:
    """Activations, which tensors show only when they are static, from the group that declares such weights."""

    static = "input_scale" in tensors
    kind = "int" if scheme.kind == "int" else "float"
    group = group_of(config, kind, bits=scheme.bits)
    activation = "static" if static else group.activation if group else None
    if "input_global_scale" in tensors and activation is None:
        activation = "dynamic"
    bits = group.activation_bits if group else None
    return replace(
        scheme, activation=activation, activation_bits=(bits or scheme.bits) if activation is not None else None
    )


def spec(scheme: Scheme, n: int, k: int, *, bias: bool = False, experts: int | None = None) -> tuple[TensorSpec, ...]:
    bits, layout = scheme.bits, scheme.layout
    tensors: list[TensorSpec] = []
    if layout == "pack-quantized":
        scale = _scale_dims(scheme, k)
        tensors.append(TensorSpec("weight_packed", "I32", (Dim("N"), words("K", bits, dense=True))))
        tensors.append(TensorSpec("weight_scale", None, scale, role="scale"))
        if not scheme.symmetric:
            zero = (words("N", bits, dense=True), *scale[1:])
            tensors.append(TensorSpec("weight_zero_point", "I32", zero, role="zero"))
        tensors.append(TensorSpec("weight_shape", "I64", (Dim("", size=2),), role="shape"))
        if scheme.act_order:
            tensors.append(TensorSpec("weight_g_idx", "I32", (Dim("K"),), role="g_idx"))
    elif layout == "nvfp4-pack-quantized":
        tensors += [
            TensorSpec("weight_packed", "U8", (Dim("N"), Dim("K", values=2))),
            TensorSpec("weight_scale", "F8_E4M3", (Dim("N"), Dim("K", values=16)), role="scale"),
            TensorSpec("weight_global_scale", "F32", (Dim("", size=1),), role="global_scale", scalar_ok=True),
        ]
        if scheme.activation is not None:
            one = (Dim("", size=1),)
            tensors.append(TensorSpec("input_global_scale", "F32", one, role="input_scale", scalar_ok=True))
    elif layout in MX_ELEMENTS:
        packed = {4: Dim("K", values=2), 6: Dim("K", values=4, items=3), 8: Dim("K")}[MX_ELEMENTS[layout]]
        name, dtype = ("weight", "F8_E4M3") if layout == "mxfp8-quantized" else ("weight_packed", "U8")
        tensors.append(TensorSpec(name, dtype, (Dim("N"), packed)))
        tensors.append(TensorSpec("weight_scale", "U8", (Dim("N"), Dim("K", values=32)), role="scale"))
    elif layout in SPARSE:
        # Withdrawn: their tensors are named, not measured.
        names = ("weight_packed", "scale_packed", "meta") if layout == "marlin-24" else ("compressed", "bitmask")
        tensors += [TensorSpec(name, None, ()) for name in names]
    else:
        scale = _scale_dims(scheme, k)
        scalar = scale == (Dim("", size=1),)
        tensors.append(TensorSpec("weight", "I8" if scheme.kind == "int" else "F8_E4M3", (Dim("N"), Dim("K"))))
        tensors.append(TensorSpec("weight_scale", None, scale, role="scale", scalar_ok=scalar))
        if not scheme.symmetric:
            tensors.append(TensorSpec("weight_zero_point", "I8", scale, role="zero", scalar_ok=scalar))
    if scheme.activation == "static" and layout != "nvfp4-pack-quantized":
        tensors.append(TensorSpec("input_scale", None, (Dim("", size=1),), role="input_scale", scalar_ok=True))
        if scheme.kind == "int":
            one, needless = (Dim("", size=1),), bool(scheme.option("input_symmetric", True))
            tensors.append(TensorSpec("input_zero_point", "I8", one, role="aux", optional=needless, scalar_ok=True))
    if bias:
        tensors.append(TensorSpec("bias", None, (Dim("N"),), role="bias"))
    return stacked(tuple(tensors), experts)


def _scale_dims(scheme: Scheme, k: int) -> tuple[Dim, ...]:
    if scheme.block is not None:
        return (Dim("N", values=scheme.block[0]), Dim("K", values=scheme.block[1]))
    if scheme.strategy == "tensor":
        return (Dim("", size=1),)
    groups = group_dim("K", k, scheme.group_size)
    if scheme.act_order and groups.axis:
        groups = Dim("", size=-(-k // groups.values))
    return (Dim("N"), groups)


def unpack(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> dict[str, Any]:
    """weight: int8 values or float codes uint8 [N, K]; scale as stored; zero: int8 [N, groups] where asymmetric;
    global_scale, input_scale, g_idx where stored."""
    import numpy as np

    from mlload.quant.formats import bitstream

    names = {"weight_global_scale": "global_scale", "weight_g_idx": "g_idx"}
    kept = ("bias", "input_scale", "input_global_scale", "input_zero_point")
    out: dict[str, Any] = {names.get(key, key): tensors[key] for key in (*names, *kept) if key in tensors}
    out["scale"] = np.asarray(tensors["weight_scale"])
    layout, bits = scheme.layout, scheme.bits
    if layout == "pack-quantized":
        out["weight"] = _signed(bitstream.unpack_words(tensors["weight_packed"], bits, k), bits)
        if "weight_zero_point" in tensors:
            zero = np.asarray(tensors["weight_zero_point"]).T
            out["zero"] = _signed(bitstream.unpack_words(zero, bits, n), bits).T
    elif layout == "mxfp6-pack-quantized":
        out["weight"] = bitstream.unpack_sextets(np.asarray(tensors["weight_packed"]))
    elif layout.endswith("-pack-quantized"):
        out["weight"] = bitstream.unpack_nibbles(tensors["weight_packed"])
    elif layout in SPARSE:
        raise MlloadError(f"compressed-tensors layout {layout!r} has been withdrawn and cannot be read")
    else:
        weight = np.asarray(tensors["weight"])
        out["weight"] = weight if scheme.kind == "int" else weight.view(np.uint8)
        if "weight_zero_point" in tensors:
            out["zero"] = tensors["weight_zero_point"]
    return out


def pack(scheme: Scheme, values: Mapping[str, Any]) -> dict[str, Any]:
    """The stored tensors of what `unpack` gives."""
    import numpy as np

    from mlload.quant.formats import bitstream

    names = {"global_scale": "weight_global_scale", "g_idx": "weight_g_idx"}
    kept = ("bias", "input_scale", "input_global_scale", "input_zero_point")
    out: dict[str, Any] = {names.get(key, key): values[key] for key in (*names, *kept) if key in values}
    out["weight_scale"] = values["scale"]
    layout, bits, weight = scheme.layout, scheme.bits, np.asarray(values["weight"])
    if layout == "pack-quantized":
        out["weight_packed"] = bitstream.pack_words(_unsigned(weight, bits), bits)
        out["weight_shape"] = np.array(weight.shape, np.int64)
        if not scheme.symmetric:
            zero = _unsigned(np.asarray(values["zero"]), bits)
            out["weight_zero_point"] = np.ascontiguousarray(bitstream.pack_words(zero.T, bits).T)
    elif layout == "mxfp6-pack-quantized":
        out["weight_packed"] = bitstream.pack_sextets(weight)
    elif layout.endswith("-pack-quantized"):
        out["weight_packed"] = bitstream.pack_nibbles(weight)
    elif layout in SPARSE:
        raise MlloadError(f"compressed-tensors layout {layout!r} has been withdrawn and cannot be written")
    else:
        out["weight"] = weight
        if not scheme.symmetric:
            out["weight_zero_point"] = values["zero"]
    return out


def dequantize(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> Any:
    """float32 [N, K]."""
    import numpy as np

    from mlload.quant.formats import elements

    parts = unpack(scheme, tensors, n, k)
    scale, weight = parts["scale"], parts["weight"]
    if scheme.layout in MX_ELEMENTS:
        table = {4: elements.e2m1_table, 6: elements.e2m3_table, 8: elements.e4m3_table}[scheme.bits]()
        return table[weight] * elements.spread(elements.e8m0(scale), n, k, 32)
    if scheme.layout == "nvfp4-pack-quantized":
        local = elements.e4m3_table()[scale.view(np.uint8)] / np.float32(np.asarray(parts["global_scale"]).reshape(()))
        return elements.e2m1_table()[weight] * elements.spread(local, n, k, 16)
    values = weight.astype(np.float32) if scheme.kind == "int" else elements.e4m3_table()[weight]
    scale = elements.as_float32(scale)
    if "g_idx" in parts and scheme.act_order:
        order = np.asarray(parts["g_idx"])
        zero = parts["zero"].astype(np.float32)[:, order] if "zero" in parts else np.float32(0)
        return (values - zero) * scale[:, order]
    if "zero" in parts:
        zero = elements.spread(np.asarray(parts["zero"]), n, k, scheme.group_size, scheme.block)
        values = values - zero.astype(np.float32)
    return values * elements.spread(scale, n, k, scheme.group_size, scheme.block)


def _signed(codes: Any, bits: int) -> Any:
    import numpy as np

    return (codes.astype(np.int16) - (1 << (bits - 1))).astype(np.int8)


def _unsigned(values: Any, bits: int) -> Any:
    import numpy as np

    return (values.astype(np.int16) + (1 << (bits - 1))).astype(np.uint8)
