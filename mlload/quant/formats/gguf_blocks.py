"""GGML's blocks taken apart and put together, on numpy arrays.

A row of K values is K / block values blocks; raw bytes are uint8 [N, blocks, nbytes]. Parts of a block:
codes uint8 [N, blocks, values] in logical order, d and m (f16, [N, blocks]), sub-scales and sub-mins
([N, blocks, sub-blocks]). Layouts: ggml/src/ggml-common.h, gguf-py's quants.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlload.quant.formats.bitstream import Array

    Parts = dict[str, Array]

# Byte offsets of the fields of each block, in order.
FIELDS: dict[str, tuple[tuple[str, int], ...]] = {
    "Q4_0": (("d", 2), ("qs", 16)),
    "Q4_1": (("d", 2), ("m", 2), ("qs", 16)),
    "Q5_0": (("d", 2), ("qh", 4), ("qs", 16)),
    "Q5_1": (("d", 2), ("m", 2), ("qh", 4), ("qs", 16)),
    "Q8_0": (("d", 2), ("qs", 32)),
    "Q2_K": (("sm", 16), ("qs", 64), ("d", 2), ("m", 2)),
    "Q3_K": (("hmask", 32), ("qs", 64), ("s12", 12), ("d", 2)),
    "Q4_K": (("d", 2), ("m", 2), ("s12", 12), ("qs", 128)),
    "Q5_K": (("d", 2), ("m", 2), ("s12", 12), ("qh", 32), ("qs", 128)),
    "Q6_K": (("ql", 128), ("qh", 64), ("s8", 16), ("d", 2)),
    "MXFP4": (("e", 1), ("qs", 16)),
    "NVFP4": (("s4", 4), ("qs", 32)),
    "TQ1_0": (("qs", 48), ("qh", 4), ("d", 2)),
    "TQ2_0": (("qs", 64), ("d", 2)),
}
# TQ1_0's bytes are fractions of 256 in base 3: (first byte, bytes, digits); digit j of byte b is value j * bytes + b.
TERNARY = ((0, 32, 5), (32, 16, 5), (48, 4, 4))
READABLE = frozenset(FIELDS)


def decode(kind: str, raw: Array) -> Parts:
    """Parts of raw blocks."""
    import numpy as np

    fields: Parts = {}
    at = 0
    for name, size in FIELDS[kind]:
        fields[name] = np.ascontiguousarray(raw[..., at : at + size])
        at += size
    parts: Parts = {name: fields[name].view(np.float16)[..., 0] for name in ("d", "m") if name in fields}
    if kind in ("Q4_0", "Q4_1", "MXFP4"):
        parts["codes"] = _halves(fields["qs"])
    elif kind in ("Q5_0", "Q5_1"):
        high: Array = np.unpackbits(fields["qh"], axis=-1, bitorder="little")
        parts["codes"] = _halves(fields["qs"]) | (high << 4)
    elif kind == "Q8_0":
        parts["codes"] = fields["qs"]
    elif kind == "NVFP4":
        runs = fields["qs"].reshape(*fields["qs"].shape[:-1], 4, 8)
        parts["codes"] = _halves(runs).reshape(*fields["qs"].shape[:-1], 64)
        parts["scales"] = fields["s4"]
    elif kind == "TQ1_0":
        parts["codes"] = _digits(np.concatenate([fields["qs"], fields["qh"]], axis=-1))
    elif kind == "TQ2_0":
        parts["codes"] = _planes(fields["qs"], 32, 2)
    elif kind == "Q2_K":
        parts["codes"] = _planes(fields["qs"], 32, 2)
        parts["scales"], parts["mins"] = fields["sm"] & 15, fields["sm"] >> 4
    elif kind == "Q3_K":
        high = (fields["hmask"][..., None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
        parts["codes"] = _planes(fields["qs"], 32, 2) | (high.reshape(*high.shape[:-2], 256) << 2)
        parts["scales"] = _six_of_q3(fields["s12"])
    elif kind in ("Q4_K", "Q5_K"):
        codes = _planes(fields["qs"], 32, 4)
        if kind == "Q5_K":
            high = (fields["qh"][..., None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
            codes = codes | (high.reshape(*high.shape[:-2], 256) << 4)
        parts["codes"] = codes
        parts["scales"], parts["mins"] = _six_and_six(fields["s12"])
    else:
        low, high = _planes(fields["ql"], 64, 4), _planes(fields["qh"], 32, 2)
        parts["codes"] = low | (high << 4)
        parts["scales"] = fields["s8"].view(np.int8)
    if kind == "MXFP4":
        parts["scales"] = fields["e"]
    return parts


def encode(kind: str, parts: Parts) -> Array:
    """Raw blocks of what `decode` gives."""
    import numpy as np

    codes = np.asarray(parts["codes"], np.uint8)
    fields: Parts = {}
    for name in ("d", "m"):
        if name in parts:
            fields[name] = np.ascontiguousarray(parts[name], np.float16)[..., None].view(np.uint8)
    if kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4"):
        fields["qs"] = _to_halves(codes & 15)
        fields["qh"] = np.packbits(codes >> 4, axis=-1, bitorder="little")
        fields["e"] = parts.get("scales", codes)
    elif kind == "Q8_0":
        fields["qs"] = codes
    elif kind == "NVFP4":
        fields["s4"] = parts["scales"]
        fields["qs"] = _to_halves(codes.reshape(*codes.shape[:-1], 4, 16)).reshape(*codes.shape[:-1], 32)
    elif kind == "TQ1_0":
        digits = _to_digits(codes)
        fields["qs"], fields["qh"] = digits[..., :48], digits[..., 48:]
    elif kind == "TQ2_0":
        fields["qs"] = _to_planes(codes, 32, 2)
    elif kind == "Q2_K":
        fields["sm"] = parts["scales"] | (parts["mins"] << 4)
        fields["qs"] = _to_planes(codes, 32, 2)
    elif kind == "Q3_K":
        fields["qs"] = _to_planes(codes & 3, 32, 2)
        fields["hmask"] = _to_bits(codes >> 2)
        fields["s12"] = _to_six_of_q3(parts["scales"])
    elif kind in ("Q4_K", "Q5_K"):
        fields["qs"] = _to_planes(codes & 15, 32, 4)
        fields["qh"] = _to_bits(codes >> 4)
        fields["s12"] = _to_six_and_six(parts["scales"], parts["mins"])
    else:
        fields["ql"] = _to_planes(codes & 15, 64, 4)
        fields["qh"] = _to_planes(codes >> 4, 32, 2)
        fields["s8"] = np.ascontiguousarray(parts["scales"], np.int8).view(np.uint8)
    return np.concatenate([fields[name] for name, _ in FIELDS[kind]], axis=-1)


def values(kind: str, parts: Parts) -> Array:
    """float32 [N, blocks, values]."""
    import numpy as np

    from mlload.quant.formats import elements

    codes = parts["codes"]
    if kind == "MXFP4":
        return elements.e2m1_table()[codes] * elements.e8m0(parts["scales"])
    if kind == "NVFP4":
        return elements.e2m1_table()[codes] * elements.e4m3_table()[parts["scales"]].repeat(16, axis=-1)
    d = parts["d"].astype(np.float32)[..., None]
    q = (codes.view(np.int8) if kind == "Q8_0" else codes).astype(np.float32)
    if kind == "Q8_0":
        return d * q
    if kind in ("Q4_0", "Q5_0"):
        return d * (q - np.float32(8 if kind == "Q4_0" else 16))
    if kind in ("TQ1_0", "TQ2_0"):
        return d * (q - np.float32(1))
    m = parts["m"].astype(np.float32)[..., None] if "m" in parts else np.float32(0)
    if kind in ("Q4_1", "Q5_1"):
        return d * q + m
    scales = parts["scales"].astype(np.float32)
    run = codes.shape[-1] // scales.shape[-1]
    if kind == "Q3_K":
        return (d * (scales - 32)).repeat(run, axis=-1) * (q - 4)
    if kind == "Q6_K":
        return (d * scales).repeat(run, axis=-1) * (q - 32)
    mins = (m * parts["mins"].astype(np.float32)).repeat(run, axis=-1)
    return (d * scales).repeat(run, axis=-1) * q - mins


def _halves(qs: Array) -> Array:
    """Low nibbles first, then all high ones."""
    import numpy as np

    return np.concatenate([qs & 15, qs >> 4], axis=-1)


def _to_halves(codes: Array) -> Array:
    half = codes.shape[-1] // 2
    packed: Array = codes[..., :half] | (codes[..., half:] << 4)
    return packed


def _planes(packed: Array, run: int, bits: int) -> Array:
    """Runs of `run` bytes; the lowest `bits` of each are the run's first `run` values, and so on up."""
    import numpy as np

    runs = packed.reshape(*packed.shape[:-1], -1, 1, run)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    codes: Array = ((runs >> shifts) & ((1 << bits) - 1)).reshape(*packed.shape[:-1], -1)
    return codes


def _to_planes(codes: Array, run: int, bits: int) -> Array:
    import numpy as np

    planes = codes.reshape(*codes.shape[:-1], -1, 8 // bits, run)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    packed: Array = np.bitwise_or.reduce(planes << shifts, axis=-2).reshape(*codes.shape[:-1], -1)
    return packed


def _digits(packed: Array) -> Array:
    """52 bytes -> 256 digits 0..2: a byte times 3**j, its whole part cut off, tells digit j."""
    import numpy as np

    found = []
    for first, count, digits in TERNARY:
        rest = packed[..., None, first : first + count] * (3 ** np.arange(digits)).astype(np.uint8)[:, None]
        found.append(((rest.astype(np.uint16) * 3) >> 8).astype(np.uint8).reshape(*packed.shape[:-1], -1))
    return np.concatenate(found, axis=-1)


def _to_digits(codes: Array) -> Array:
    """The smallest byte from which `_digits` reads the same; the short run has a last digit of 0."""
    import numpy as np

    packed, at = [], 0
    for _, count, digits in TERNARY:
        runs = codes[..., at : at + count * digits].reshape(*codes.shape[:-1], digits, count).astype(np.uint16)
        number = (runs * (3 ** np.arange(4, 4 - digits, -1)).astype(np.uint16)[:, None]).sum(-2)
        packed.append(((number * 256 + 242) // 243).astype(np.uint8))
        at += count * digits
    return np.concatenate(packed, axis=-1)


def _to_bits(codes: Array) -> Array:
    """256 single bits -> 32 bytes: bit j of byte l is value 32 j + l."""
    import numpy as np

    planes = codes.reshape(*codes.shape[:-1], 8, 32)
    packed: Array = np.bitwise_or.reduce(planes << np.arange(8, dtype=np.uint8)[:, None], axis=-2)
    return packed


def _six_and_six(s12: Array) -> tuple[Array, Array]:
    """8 six-bit scales and 8 six-bit mins from 12 bytes."""
    import numpy as np

    low_s, low_m, rest = s12[..., :4], s12[..., 4:8], s12[..., 8:]
    scales = np.concatenate([low_s & 63, (rest & 15) | ((low_s >> 6) << 4)], axis=-1)
    mins = np.concatenate([low_m & 63, (rest >> 4) | ((low_m >> 6) << 4)], axis=-1)
    return scales, mins


def _to_six_and_six(scales: Array, mins: Array) -> Array:
    import numpy as np

    s, m = np.asarray(scales, np.uint8), np.asarray(mins, np.uint8)
    first = (s[..., :4] & 63) | ((s[..., 4:] >> 4) << 6)
    second = (m[..., :4] & 63) | ((m[..., 4:] >> 4) << 6)
    third = (s[..., 4:] & 15) | ((m[..., 4:] & 15) << 4)
    return np.concatenate([first, second, third], axis=-1)


def _six_of_q3(s12: Array) -> Array:
    """16 six-bit scales from 12 bytes: low nibbles in the first 8, pairs of high bits in the last 4."""
    import numpy as np

    low = np.concatenate([s12[..., :8] & 15, s12[..., :8] >> 4], axis=-1)
    high = (s12[..., None, 8:] >> np.arange(0, 8, 2, dtype=np.uint8)[:, None]) & 3
    scales: Array = low | (high.reshape(*s12.shape[:-1], 16) << 4)
    return scales


def _to_six_of_q3(scales: Array) -> Array:
    import numpy as np

    s = np.asarray(scales, np.uint8)
    low = (s[..., :8] & 15) | ((s[..., 8:] & 15) << 4)
    pairs = (s >> 4).reshape(*s.shape[:-1], 4, 4) << np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    return np.concatenate([low, np.bitwise_or.reduce(pairs, axis=-2)], axis=-1)


def blocks_of(kind: str, raw: Any, n: int) -> Array:
    """Stored bytes of [n, K] as blocks [n, blocks, nbytes]."""
    import numpy as np

    size = sum(length for _, length in FIELDS[kind])
    return np.ascontiguousarray(raw).view(np.uint8).reshape(n, -1, size)
