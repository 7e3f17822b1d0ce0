"""AWQ: 4-bit integers with zero points, packed along N in an order of their own.

N = out_features, K = in_features, G = group size, `y = x W^T`.
gemm:      qweight int32 [K, N/8], qzeros int32 [K/G, N/8], scales f16 [K/G, N]; a word holds the columns
           8c + (0, 2, 4, 6, 1, 3, 5, 7), low nibble first. Zero points are stored as they are.
gemv:      qweight int32 [N, K/8] in plain order, qzeros int32 [N, W], scales f16 [N, 8W], where
           W = ceil(K/G / 8) rounded up to 1, 2 or 4 for G >= 128, 64, 32.
gemv_fast: qweight int16 [N/4, K], scales and (scaled) qzeros f16 [8W, N].
marlin:    already shuffled for one kernel: recognised, not read.
Sources: AutoAWQ's modules/linear/{gemm,gemv,gemv_fast,marlin}.py and utils/packing_utils.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.tensor import TensorRef
from mlload.quant.formats import matching, plain_modules
from mlload.quant.formats.fields import flag, integer, strings, text, width
from mlload.quant.formats.tensors import cut, group_dim, stacked
from mlload.quant.spec import Dim, Scheme, TensorSpec

__all__ = ["cut", "declare", "dequantize", "detect", "pack", "spec", "unpack"]

# Nibble i of a word holds column PACK_ORDER[i] of its 8; column j is found in nibble UNPACK_ORDER[j].
PACK_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
UNPACK_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)


def detect(config: Mapping[str, Any], tensors: Mapping[str, TensorRef]) -> Scheme | None:
    qweight, scales = tensors.get("qweight"), tensors.get("scales")
    if qweight is None or scales is None or len(qweight.shape) != 2 or len(scales.shape) != 2:
        return None
    symmetric = not flag(config, "zero_point", default="qzeros" in tensors)
    a, b = qweight.shape
    groups, n = scales.shape
    if qweight.dtype == "I16" and a * 4 == n:
        return _scheme("gemv_fast", 4, integer(config, "group_size", "q_group_size"), symmetric)
    if qweight.dtype not in ("I32", "U32") or not (a and b and groups and n):
        return None
    if b * 8 == n:
        if groups > a or a % groups:
            return None
        group = integer(config, "group_size", "q_group_size")
        explains = group is not None and group > 0 and a == groups * group
        return _scheme("gemm", 4, group if explains else -1 if groups == 1 else a // groups, symmetric)
    if a == groups and n % 8 == 0:
        # gemv keeps N first in every tensor; its scales are padded, so the group comes from the config.
        return _scheme("gemv", 4, integer(config, "group_size", "q_group_size"), symmetric)
    if b == 2 * n:
        return _scheme("marlin", 4, -1 if groups == 1 else a * 16 // groups, symmetric)
    return None


def declare(config: Mapping[str, Any]) -> Callable[[str], Scheme | None]:
    scheme = _scheme(
        text(config, "version", "format", default="gemm").lower(),
        width(config, "w_bit", "bits", allowed=(2, 4, 8), default=4),
        integer(config, "q_group_size", "group_size", default=128),
        not flag(config, "zero_point", default=True),
    )
    skipped = matching.substring(strings(config, "modules_to_not_convert"))
    head = flag(config, "lm_head")
    return lambda module: None if skipped(module) or plain_modules.left_plain(module, head=head) else scheme


def _scheme(layout: str, bits: int, group: int | None, symmetric: bool) -> Scheme:
    layout = {"gemv_fast": "gemv_fast", "gemv": "gemv", "marlin": "marlin"}.get(layout, "gemm")
    strategy = "channel" if group == -1 else "group"
    return Scheme(format="awq", layout=layout, bits=bits, strategy=strategy, group_size=group, symmetric=symmetric)


def spec(scheme: Scheme, n: int, k: int, *, bias: bool = False, experts: int | None = None) -> tuple[TensorSpec, ...]:
    group, factor = scheme.group_size, 32 // scheme.bits
    zero_ok = scheme.symmetric
    if scheme.layout == "gemv":
        width = zeros_width(k, group)
        tensors = [
            TensorSpec("qweight", "I32", (Dim("N"), Dim("K", values=factor))),
            TensorSpec("qzeros", "I32", (Dim("N"), Dim("", size=width)), role="zero", optional=zero_ok),
            TensorSpec("scales", None, (Dim("N"), Dim("", size=8 * width)), role="scale"),
        ]
    elif scheme.layout == "gemv_fast":
        rows = Dim("", size=8 * zeros_width(k, group))
        tensors = [
            TensorSpec("qweight", "I16", (Dim("N", values=4), Dim("K", values=64, items=64))),
            TensorSpec("qzeros", None, (rows, Dim("N")), role="zero", optional=zero_ok),
            TensorSpec("scales", None, (rows, Dim("N")), role="scale"),
        ]
    elif scheme.layout == "marlin":
        groups = group_dim("K", k, group)
        tensors = [
            TensorSpec("qweight", "I32", (Dim("K", values=16), Dim("N", values=64, items=128))),
            TensorSpec("qzeros", "I32", (groups, Dim("N", values=8)), role="zero", optional=zero_ok),
            TensorSpec("scales", None, (groups, Dim("N", values=64, items=64)), role="scale"),
        ]
    else:
        groups = group_dim("K", k, group)
        tensors = [
            TensorSpec("qweight", "I32", (Dim("K"), Dim("N", values=factor))),
            TensorSpec("qzeros", "I32", (groups, Dim("N", values=factor)), role="zero", optional=zero_ok),
            TensorSpec("scales", None, (groups, Dim("N")), role="scale"),
        ]
    if bias:
        tensors.append(TensorSpec("bias", None, (Dim("N"),), role="bias"))
    return stacked(tuple(tensors), experts)


def zeros_width(k: int, group: int | None) -> int:
    """Words of gemv's qzeros per row: room for K/G zeros, padded as its kernel wants."""
    size = k if not group or group < 0 else group
    multiple = 1 if size >= 128 else 2 if size >= 64 else 4
    words = -(-(k // size) // 8)
    return -(-words // multiple) * multiple


def unpack(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> dict[str, Any]:
    """weight: codes uint8 [N, K]; scale: f16 [N, groups]; zero: codes uint8 [N, groups], 8 where none is stored
    (gemv_fast keeps `-scale * zero` and it is turned back)."""
    import numpy as np

    from mlload.quant.formats.bitstream import unpack_words

    out: dict[str, Any] = {name: tensors[name] for name in ("bias",) if name in tensors}
    groups = 1 if not scheme.group_size or scheme.group_size < 0 else k // scheme.group_size
    qzeros = tensors.get("qzeros")
    if scheme.layout == "gemm":
        out["weight"] = _columns(tensors["qweight"], n).T
        out["scale"] = np.asarray(tensors["scales"]).T
        if qzeros is not None:
            out["zero"] = _columns(qzeros, n).T
    elif scheme.layout == "gemv":
        out["weight"] = unpack_words(tensors["qweight"], 4, k)
        out["scale"] = np.asarray(tensors["scales"])[:, :groups]
        if qzeros is not None:
            out["zero"] = unpack_words(qzeros, 4, groups)
    elif scheme.layout == "gemv_fast":
        out["weight"] = _from_fast(np.asarray(tensors["qweight"]), n, k)
        out["scale"] = np.asarray(tensors["scales"])[:groups].T
        if qzeros is not None:
            scale = out["scale"].astype(np.float32)
            ratio = -np.asarray(qzeros)[:groups].T.astype(np.float32) / np.where(scale == 0, 1, scale)
            out["zero"] = np.rint(ratio).astype(np.uint8)
    else:
        raise MlloadError(f"AWQ layout {scheme.layout!r} is shuffled for one kernel and cannot be read")
    if qzeros is None:
        out["zero"] = np.full((n, groups), 8, np.uint8)
    return out


def pack(scheme: Scheme, values: Mapping[str, Any]) -> dict[str, Any]:
    """The stored tensors of what `unpack` gives; zero points of 8 are not written under a symmetric scheme."""
    import numpy as np

    from mlload.quant.formats.bitstream import pack_words

    codes, scale = np.asarray(values["weight"], np.uint8), np.asarray(values["scale"])
    zero = None if scheme.symmetric else np.asarray(values["zero"], np.uint8)
    k = codes.shape[1]
    out: dict[str, Any] = {name: values[name] for name in ("bias",) if name in values}
    if scheme.layout == "gemm":
        out["qweight"] = _to_columns(codes.T)
        out["scales"] = np.ascontiguousarray(scale.T)
        if zero is not None:
            out["qzeros"] = _to_columns(zero.T)
    elif scheme.layout == "gemv":
        width = zeros_width(k, scheme.group_size)
        out["qweight"] = pack_words(codes, 4)
        out["scales"] = _padded(scale, 8 * width)
        if zero is not None:
            out["qzeros"] = pack_words(_padded(zero, 8 * width), 4)
    elif scheme.layout == "gemv_fast":
        rows = 8 * zeros_width(k, scheme.group_size)
        out["qweight"] = _to_fast(codes)
        out["scales"] = _padded(scale, rows).T.copy()
        if zero is not None:
            scaled = -(scale.astype(np.float32) * zero)
            out["qzeros"] = _padded(scaled.astype(np.float16), rows).T.copy()
    else:
        raise MlloadError(f"AWQ layout {scheme.layout!r} is shuffled for one kernel and cannot be written")
    return out


def dequantize(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> Any:
    """(q - z) * s as float32 [N, K]."""
    from mlload.quant.formats.elements import as_float32, spread

    parts = unpack(scheme, tensors, n, k)
    codes = parts["weight"].astype("float32")
    zero = spread(parts["zero"], n, k, scheme.group_size).astype("float32")
    return (codes - zero) * spread(as_float32(parts["scale"]), n, k, scheme.group_size)


def _columns(words: Any, count: int) -> Any:
    from mlload.quant.formats.bitstream import unpack_words

    codes = unpack_words(words, 4, words.shape[-1] * 8)
    return codes.reshape(*codes.shape[:-1], -1, 8)[..., UNPACK_ORDER].reshape(*codes.shape[:-1], -1)[..., :count]


def _to_columns(codes: Any) -> Any:
    from mlload.quant.formats.bitstream import pack_words

    ordered = codes.reshape(*codes.shape[:-1], -1, 8)[..., PACK_ORDER]
    return pack_words(ordered.reshape(codes.shape), 4)


def _fast_order() -> Any:
    """Where the 32 values of a run along K go: pairs of the four 8-runs side by side, then even before odd."""
    import numpy as np

    order = np.arange(32).reshape(4, 4, 2).transpose(1, 0, 2).reshape(4, 8)
    return order.reshape(4, 4, 2).transpose(0, 2, 1).reshape(32)


def _to_fast(codes: Any) -> Any:
    import numpy as np

    n, k = codes.shape
    runs = codes.reshape(n, k // 32, 32)[..., _fast_order()].reshape(n // 4, 4, k // 64, 64)
    quads = runs.transpose(0, 2, 1, 3).reshape(n // 4, k // 64, 64, 4).astype(np.uint16)
    words = quads[..., 0] | (quads[..., 1] << 4) | (quads[..., 2] << 8) | (quads[..., 3] << 12)
    return words.reshape(n // 4, k).view(np.int16)


def _from_fast(words: Any, n: int, k: int) -> Any:
    import numpy as np

    raw = np.ascontiguousarray(words).view(np.uint16).reshape(n // 4, k // 64, 64)
    quads = np.stack([(raw >> shift) & 15 for shift in (0, 4, 8, 12)], axis=-1).astype(np.uint8)
    runs = quads.reshape(n // 4, k // 64, 4, 64).transpose(0, 2, 1, 3).reshape(n, k // 32, 32)
    return runs[..., np.argsort(_fast_order())].reshape(n, k)


def _padded(array: Any, width: int) -> Any:
    import numpy as np

    out = np.zeros((array.shape[0], width), array.dtype)
    out[:, : array.shape[1]] = array
    return out
