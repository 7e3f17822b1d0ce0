"""GPTQ: integers of 2 to 8 bits packed along K, zero points along N.

N = out_features, K = in_features, G = group size, b = bits, P = 32 / b values a word.
qweight int32 [ceil(K*b/32), N], qzeros int32 [ceil(K/G), ceil(N*b/32)], scales f16 [ceil(K/G), N],
g_idx int32 [K]: the group of each input row.
Layouts: "gptq" (v1) stores a zero point less one, subtracted from whole words; "gptq_v2" stores it as it is;
"gptq_p" and every 5, 6 and 7-bit file keep bit planes instead of a dense stream; "marlin" and "bitblas" are
shuffled for one kernel: recognised, not read.
Sources: GPTQModel's nn_modules/qlinear, utils/model.py (v1 and v2), utils/planar_packing.py, vLLM's auto_gptq.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.tensor import TensorRef
from mlload.quant.formats import matching, plain_modules
from mlload.quant.formats.fields import flag, integer, mapping, strings, text, width
from mlload.quant.formats.tensors import cut, group_dim, stacked, words
from mlload.quant.spec import Dim, Scheme, TensorSpec

__all__ = ["cut", "declare", "dequantize", "detect", "pack", "spec", "unpack"]

BITS = (2, 3, 4, 5, 6, 7, 8)
KERNEL_LAYOUTS = ("marlin", "bitblas", "exllama")

# One in every field of a word: what v1 subtracts from a word of zero points.
ONES = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}


def detect(config: Mapping[str, Any], tensors: Mapping[str, TensorRef]) -> Scheme | None:
    if "B" in tensors and "s" in tensors:
        return _marlin(config, tensors["B"], tensors["s"])
    qweight, scales = tensors.get("qweight"), tensors.get("scales")
    if qweight is None or scales is None or len(qweight.shape) != 2 or len(scales.shape) != 2:
        return None
    layout = _layout(config)
    a, columns = qweight.shape
    groups, n = scales.shape
    if layout == "bitblas" and qweight.dtype in ("I8", "U8"):
        return _scheme(config, layout=layout)
    if qweight.dtype not in ("I32", "U32") or not (a and groups and n):
        return None
    if columns == 2 * n or (layout == "marlin" and columns != n):
        return _scheme(config, layout="marlin")
    if columns != n:
        return None
    declared = integer(config, "bits")
    qzeros, g_idx = tensors.get("qzeros"), tensors.get("g_idx")
    bits = None
    if g_idx is not None and len(g_idx.shape) == 1 and g_idx.shape[0]:
        bits = next((b for b in BITS if -(-g_idx.shape[0] * b // 32) == a), None)
    elif qzeros is not None and len(qzeros.shape) == 2:
        bits = next((b for b in BITS if -(-n * b // 32) == qzeros.shape[1]), None)
    bits = bits or declared
    if bits not in BITS:
        return None
    k = g_idx.shape[0] if g_idx is not None and len(g_idx.shape) == 1 else a * 32 // bits
    return _scheme(config, bits=bits, group=_group(k, groups, integer(config, "group_size")), has_zeros=bool(qzeros))


def _group(k: int, groups: int, declared: int | None) -> int:
    """The declared group size where it explains the count of groups, else the one that does."""
    if declared and declared > 0 and -(-k // declared) == groups:
        return declared
    return -1 if groups == 1 else -(-k // groups)


def _marlin(config: Mapping[str, Any], packed: TensorRef, scales: TensorRef) -> Scheme | None:
    """The first Marlin's own names: B int32 [K/16, 2N], s f16 [K/G, N]."""
    if len(packed.shape) != 2 or len(scales.shape) != 2 or packed.shape[1] != 2 * scales.shape[1]:
        return None
    groups = scales.shape[0]
    group = -1 if groups == 1 else packed.shape[0] * 16 // max(groups, 1)
    scheme = _scheme(config, bits=4, group=group, layout="marlin")
    return replace(scheme, options=(("names", ("B", "s")),))


def _layout(config: Mapping[str, Any]) -> str:
    layout = text(config, "checkpoint_format", "format", default="gptq").lower()
    if flag(config, "is_marlin_format") or text(config, "quant_method").lower() == "marlin":
        return "marlin"
    if text(config, "quant_method").lower() == "gptq_bitblas":
        return "bitblas"
    return layout if layout in ("gptq", "gptq_v2", "gptq_p", *KERNEL_LAYOUTS) else "gptq"


def _scheme(
    config: Mapping[str, Any],
    *,
    bits: int | None = None,
    group: int | None = None,
    layout: str = "",
    has_zeros: bool = True,
) -> Scheme:
    declared_group = integer(config, "group_size", default=128)
    bits = bits or width(config, "bits", allowed=BITS, default=4)
    group = group if group is not None else declared_group
    layout = layout or _layout(config)
    planar = layout == "gptq_p" or bits in (5, 6, 7)
    # One group a column is the same in any order of the rows.
    act_order = flag(config, "desc_act") and group != -1 and not flag(config, "static_groups")
    return Scheme(
        format="gptq",
        layout=layout,
        bits=bits,
        strategy="channel" if group == -1 else "group",
        group_size=group,
        symmetric=flag(config, "sym", default=True) or not has_zeros,
        act_order=act_order,
        options=(("planar", True),) if planar and bits not in (2, 4, 8) else (),
    )


def declare(config: Mapping[str, Any]) -> Callable[[str], Scheme | None]:
    base = _scheme(config)
    head = flag(config, "lm_head")
    inside = strings(config, "modules_in_block_to_quantize")
    rules = []
    for pattern, override in mapping(config, "dynamic").items():
        compiled = matching.regex(pattern[2:] if pattern[:2] in ("+:", "-:") else pattern)
        if compiled is not None:
            skip = pattern.startswith("-:") or override is False
            rules.append((compiled, None if skip else _scheme({**config, **_overrides(override)})))

    def scheme_for(module: str) -> Scheme | None:
        for pattern, scheme in rules:
            if pattern.match(module):
                return scheme
        if inside and not any(name in module for name in inside):
            return None
        return None if plain_modules.left_plain(module, head=head) else base

    return scheme_for


def _overrides(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {}
    return {key: value[key] for key in ("bits", "group_size", "sym", "desc_act") if key in value}


def spec(scheme: Scheme, n: int, k: int, *, bias: bool = False, experts: int | None = None) -> tuple[TensorSpec, ...]:
    bits = scheme.bits
    if scheme.option("planar"):
        rows, columns = Dim("K", values=32, items=bits), Dim("N", values=32, items=bits)
    else:
        rows, columns = words("K", bits), words("N", bits)
    groups = group_dim("K", k, scheme.group_size)
    if scheme.act_order and groups.axis:
        # A row may belong to any group, so each part of K needs all of them.
        groups = Dim("", size=-(-k // groups.values))
    if scheme.layout == "bitblas":
        tensors = [
            TensorSpec("qweight", "I8", (Dim("N"), Dim("K", values=8, items=bits))),
            TensorSpec("scales", None, (Dim("N"), groups), role="scale"),
            TensorSpec("zeros", None, (Dim("N"), groups), role="zero", optional=True),
        ]
    elif scheme.layout in KERNEL_LAYOUTS:
        weight, scale = scheme.option("names", ("qweight", "scales"))
        tensors = [
            TensorSpec(weight, "I32", (Dim("K", values=16), Dim("N", values=64, items=128))),
            TensorSpec(scale, None, (groups, Dim("N", values=64, items=64)), role="scale"),
            TensorSpec("workspace", "I32", (Dim("N", values=8),), role="aux", optional=True),
        ]
    else:
        tensors = [
            TensorSpec("qweight", "I32", (rows, Dim("N"))),
            TensorSpec("qzeros", "I32", (groups, columns), role="zero"),
            TensorSpec("scales", None, (groups, Dim("N")), role="scale"),
            TensorSpec("g_idx", "I32", (Dim("K"),), role="g_idx", optional=not scheme.act_order),
        ]
    if bias:
        tensors.append(TensorSpec("bias", None, (Dim("N"),), role="bias"))
    return stacked(tuple(tensors), experts)


def v1_to_v2(qzeros: Any, bits: int, *, planar: bool = False) -> Any:
    """v1's stored zero points (less one) as v2 stores them.

    For 2, 4 and 8 bits the writer subtracts one constant from a whole word, so that a zero of 0 borrows from its
    neighbours; only adding the same constant, modulo 2**32, undoes that. The fields of 3-bit streams straddle words
    and those of planes are spread over several: there each value is shifted by itself.
    """
    return _shift_zeros(qzeros, bits, 1, planar)


def v2_to_v1(qzeros: Any, bits: int, *, planar: bool = False) -> Any:
    return _shift_zeros(qzeros, bits, -1, planar)


def _shift_zeros(qzeros: Any, bits: int, step: int, planar: bool) -> Any:
    import numpy as np

    raw = np.ascontiguousarray(qzeros).view(np.uint32)
    if bits in ONES:
        with np.errstate(over="ignore"):
            shifted = raw + np.uint32(ONES[bits]) if step > 0 else raw - np.uint32(ONES[bits])
        return shifted.view(np.int32)
    read, write = _packing(planar)
    values = read(raw.view(np.int32), bits, raw.shape[-1] * 32 // bits).astype(np.int16)
    return write((values + step) & ((1 << bits) - 1), bits)


def trivial(g_idx: Any, group: int) -> bool:
    """Whether rows belong to groups in order (g_idx[i] = i // G), whatever desc_act says."""
    import numpy as np

    g_idx = np.asarray(g_idx)
    size = len(g_idx) if group <= 0 else group
    return bool((g_idx == np.arange(len(g_idx)) // size).all())


def unpack(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> dict[str, Any]:
    """weight: codes uint8 [N, K]; scale: [N, groups]; zero: uint8 [N, groups], the true zero points (modulo
    2**bits), 2**(bits-1) where none is stored; g_idx: int32 [K]."""
    import numpy as np

    _readable(scheme)
    planar = bool(scheme.option("planar"))
    read, _ = _packing(planar)
    scale = np.asarray(tensors["scales"]).T
    out: dict[str, Any] = {name: tensors[name] for name in ("bias", "g_idx") if name in tensors}
    out["weight"] = read(np.asarray(tensors["qweight"]).T, scheme.bits, k)
    out["scale"] = scale
    qzeros = tensors.get("qzeros")
    if qzeros is None:
        out["zero"] = np.full((n, scale.shape[1]), 1 << (scheme.bits - 1), np.uint8)
    else:
        if scheme.layout == "gptq":
            qzeros = v1_to_v2(qzeros, scheme.bits, planar=planar)
        out["zero"] = read(np.asarray(qzeros), scheme.bits, n).T
    return out


def pack(scheme: Scheme, values: Mapping[str, Any]) -> dict[str, Any]:
    """The stored tensors of what `unpack` gives. g_idx is written in order where none is given."""
    import numpy as np

    _readable(scheme)
    planar = bool(scheme.option("planar"))
    _, write = _packing(planar)
    codes = np.asarray(values["weight"], np.uint8)
    k = codes.shape[1]
    size = k if not scheme.group_size or scheme.group_size < 0 else scheme.group_size
    qzeros = write(np.asarray(values["zero"], np.uint8).T, scheme.bits)
    if scheme.layout == "gptq":
        qzeros = v2_to_v1(qzeros, scheme.bits, planar=planar)
    g_idx = values.get("g_idx")
    return {
        **{name: values[name] for name in ("bias",) if name in values},
        "qweight": np.ascontiguousarray(write(codes, scheme.bits).T),
        "qzeros": qzeros,
        "scales": np.ascontiguousarray(np.asarray(values["scale"]).T),
        "g_idx": (np.arange(k) // size).astype(np.int32) if g_idx is None else g_idx,
    }


def dequantize(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> Any:
    """(q - z) * s as float32 [N, K], each column with the group that g_idx names."""
    import numpy as np

    from mlload.quant.formats.elements import as_float32

    parts = unpack(scheme, tensors, n, k)
    scale = as_float32(parts["scale"])
    size = k if not scheme.group_size or scheme.group_size < 0 else scheme.group_size
    g_idx = np.asarray(parts["g_idx"]) if "g_idx" in parts else np.arange(k) // size
    # Negative indices count from the last group, as GPTQModel's packer takes them.
    if g_idx.size and (g_idx.min() < -scale.shape[1] or g_idx.max() >= scale.shape[1]):
        raise MlloadError(f"g_idx names group {int(g_idx.max())} of {scale.shape[1]} (from {int(g_idx.min())})")
    codes = parts["weight"].astype(np.float32)
    return (codes - parts["zero"].astype(np.float32)[:, g_idx]) * scale[:, g_idx]


def _readable(scheme: Scheme) -> None:
    if scheme.layout in KERNEL_LAYOUTS:
        raise MlloadError(f"GPTQ layout {scheme.layout!r} is shuffled for one kernel and cannot be read or written")


def _packing(planar: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    from mlload.quant.formats import bitstream

    if planar:
        return bitstream.unpack_planes, bitstream.pack_planes
    return bitstream.unpack_words, bitstream.pack_words
