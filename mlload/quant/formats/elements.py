"""Small floating-point elements as tables, on numpy arrays.

numpy has no bf16 and no fp8: arrays of these come as raw bits, uint16 and uint8. Sources: the OCP
Microscaling (MX) v1.0 and OFP8 definitions.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[Any]
    Floats = NDArray[np.float32]

E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@cache
def e2m1_table() -> Floats:
    """16 values by code; bit 3 is the sign, code 8 is -0."""
    import numpy as np

    half = np.array(E2M1_MAGNITUDES, np.float32)
    return np.concatenate([half, -half])


@cache
def e2m3_table() -> Floats:
    """64 values by code of fp6 e2m3."""
    return _table(2, 3, bias=1)


@cache
def e3m2_table() -> Floats:
    """64 values by code of fp6 e3m2."""
    return _table(3, 2, bias=3)


@cache
def e4m3_table() -> Floats:
    """256 values by code of fp8 e4m3fn: no infinities, 0x7f and 0xff are NaN, the largest is 448."""
    import numpy as np

    table = _table(4, 3, bias=7)
    table[[0x7F, 0xFF]] = np.nan
    return table


@cache
def e5m2_table() -> Floats:
    """256 values by code of fp8 e5m2: the largest finite one is 57344, 0x7c is infinity."""
    import numpy as np

    table = _table(5, 2, bias=15)
    table[0x7C], table[0xFC] = np.inf, -np.inf
    table[0x7D:0x80] = table[0xFD:0x100] = np.nan
    return table


def _table(exponent: int, mantissa: int, *, bias: int) -> Floats:
    import numpy as np

    codes = np.arange(1 << (exponent + mantissa))
    e, m = codes >> mantissa, (codes & ((1 << mantissa) - 1)) / (1 << mantissa)
    half = np.where(e == 0, np.ldexp(m, 1 - bias), np.ldexp(1 + m, e - bias)).astype(np.float32)
    return np.concatenate([half, -half])


def e8m0(exponents: Array) -> Floats:
    """Power-of-two scales from their biased exponents; 255 is NaN."""
    import numpy as np

    raw = np.asarray(exponents).view(np.uint8)
    # float64 on the way: 2**-127 is subnormal in float32 and must not be flushed.
    values = np.ldexp(1.0, np.minimum(raw, 254).astype(np.int32) - 127).astype(np.float32)
    return np.where(raw == 255, np.float32(np.nan), values)


def encode(values: Array, table: Floats) -> Array:
    """Codes of the table's nearest values, ties to the even code, saturating; the sign of zero is kept."""
    import numpy as np

    half = len(table) // 2
    finite = int(np.isfinite(table[:half]).sum())
    levels = table[:finite]
    x = np.asarray(values, np.float32)
    size = np.abs(x)
    above = np.clip(np.searchsorted(levels, size), 1, finite - 1)
    low, high = size - levels[above - 1], levels[above] - size
    up = (high < low) | ((high == low) & (above % 2 == 0))
    codes = np.where(up, above, above - 1)
    return (codes + np.where(np.signbit(x), half, 0)).astype(np.uint8)


def as_float32(array: Any) -> Floats:
    """A scale or a float tensor as float32; uint16 is bf16's bits."""
    import numpy as np

    array = np.asarray(array)
    if array.dtype == np.uint16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    values: Floats = array.astype(np.float32)
    return values


def to_bf16(values: Array) -> Array:
    """bf16 bits (uint16) of float32 values, rounded to nearest even."""
    import numpy as np

    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded.astype(np.uint16)).astype(np.uint16)


def spread(scales: Array, n: int, k: int, group: int | None = None, block: tuple[int, int] | None = None) -> Array:
    """Scales (or zeros) brought to where they broadcast against [n, k].

    Scalars and columns stay; [n, groups] is repeated along K, [rows, columns] of blocks along both, ragged
    last ones cut.
    """
    import numpy as np

    scales = np.asarray(scales)
    if scales.size == 1:
        return scales.reshape(1, 1)
    if scales.ndim == 1:
        scales = scales.reshape(-1, 1)
    if block is not None:
        return scales.repeat(block[0], axis=0)[:n].repeat(block[1], axis=1)[:, :k]
    if scales.shape[1] == 1:
        return scales
    size = group if group and group > 0 else -(-k // scales.shape[1])
    return scales.repeat(size, axis=1)[:, :k]
