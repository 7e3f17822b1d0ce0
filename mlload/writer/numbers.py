"""Stored elements as float32 arrays, and how far two arrays are apart. numpy is imported when asked for."""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import Any, NamedTuple

from mlload.checkpoint.finding import MlloadError

# Stored dtype -> numpy's, for those that it has.
NUMPY = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip
# Those that come as raw bits.
BITS = {"BF16": "<u2", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1"}
FLOATS = {"F64", "F32", "F16", *BITS}


def need_numpy() -> Any:
    try:
        import numpy
    except ImportError:
        raise MlloadError('numbers need numpy, which is not installed here:  pip install "mlload[gguf]"') from None
    return numpy


def raw_array(raw: bytes, dtype: str) -> Any:
    """A flat array as `quant.formats` wants it: bf16 and fp8 as their bits."""
    np = need_numpy()
    return np.frombuffer(raw, NUMPY.get(dtype) or BITS.get(dtype) or "u1")


def float_array(raw: bytes, dtype: str) -> Any:
    """A flat float32 array (float64 for dtypes that are wider)."""
    np = need_numpy()
    array = raw_array(raw, dtype)
    if dtype == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    if dtype in ("F8_E4M3", "F8_E5M2", "F8_E8M0"):
        from mlload.quant.formats import elements

        if dtype == "F8_E8M0":
            return elements.e8m0(array)
        return (elements.e4m3_table() if dtype == "F8_E4M3" else elements.e5m2_table())[array]
    return array.astype(np.float64 if array.dtype.itemsize > 4 else np.float32)


class Distance(NamedTuple):
    """largest: max |a - b|; relative: |a - b| / |a|, both as Euclidean norms; None where a is zero"""

    largest: float
    relative: float | None


def distance(pairs: Iterable[tuple[Any, Any]]) -> Distance:
    """Over pairs of arrays that are pieces of two tensors. NaN in both at one place is no difference."""
    np = need_numpy()
    largest = squares = base = 0.0
    for one, other in pairs:
        with np.errstate(invalid="ignore", over="ignore"):
            one, other = one.astype(np.float64), other.astype(np.float64)
            gap = np.abs(one - other)
            gap[(one == other) | (np.isnan(one) & np.isnan(other))] = 0.0
            if gap.size:
                top = gap.max()
                largest = float(top) if not top <= largest else largest
            squares += float((gap * gap).sum())
            base += float((one[np.isfinite(one)] ** 2).sum())
    return Distance(largest, sqrt(squares / base) if base else None)
