"""Looks at one piece of one tensor. Two passes over each byte of a healthy weight, on raw bits, without copies.

Floats are compared as integers: among unsigned ones the largest is the most negative value, among signed ones the
most positive, so that two maxima give both extremes, and with them NaN, infinity, the range and "all zero" at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mlload.checkpoint.gguf_types import BY_NAME
from mlload.checkpoint.tensor import DTYPE_BITS, TensorRef
from mlload.quant.formats.gguf_blocks import FIELDS
from mlload.validators.deep.numbers import NUMBERS, Number
from mlload.validators.deep.roles import Role
from mlload.validators.deep.seen import KEEP, Seen, earlier

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bits = NDArray[np.unsignedinteger[Any]]

ROW = 16 << 10  # bytes: runs of zeros are noticed at this grain
SAMPLE = 64 << 10  # bytes at the beginning of each piece in which saturated codes are counted
HEAD_WORDS = 96  # a multiple of the 3 words over which 3-bit fields repeat
SCALES = frozenset({"scale", "global_scale", "input_scale"})


class How(NamedTuple):
    """How to look at a tensor.

    kind:    "float", "scale", "bits" (integers and packed codes), "zeros" (GPTQ's), "g_idx", "blocks" (GGUF)
    number:  of floats and scales
    width:   bytes of an element, or of a block
    codes:   what counts as saturated: "e4m3", "int8", "int4", "fp4", or ""
    group:   values per group (g_idx)
    bits:    of a zero point stored as z - 1, 0 where borrowing is not looked for
    fields:  (offset in a block, its number) of a block's scales
    """

    kind: str
    number: Number | None
    width: int
    codes: str = ""
    group: int = 0
    bits: int = 0
    fields: tuple[tuple[int, Number], ...] = ()


def how(tensor: TensorRef, role: Role, *, zeros_less_one: bool = False) -> How:
    """zeros_less_one: the config says that GPTQ's zero points are stored as z - 1, and they are not symmetric."""
    dtype, scheme = tensor.dtype, role.scheme
    block = BY_NAME.get(dtype)
    if block is not None and block.elements > 1:
        return How("blocks", None, block.nbytes, fields=_scale_fields(dtype))
    if role.role in SCALES and dtype == "U8" and scheme is not None and scheme.kind == "mx":
        return How("scale", NUMBERS["F8_E8M0"], 1)
    number = NUMBERS.get("F32" if dtype == "C64" else dtype)
    if number is not None:
        kind = "scale" if role.role in SCALES else "float"
        weight = role.role == "weight" and scheme is not None
        return How(kind, number, number.nbytes, codes="e4m3" if weight and dtype == "F8_E4M3" else "")
    width = max(1, DTYPE_BITS.get(dtype, 8) // 8)
    if role.role == "g_idx" and dtype == "I32" and scheme is not None and (scheme.group_size or 0) > 0:
        return How("g_idx", None, 4, group=scheme.group_size or 0)
    if role.role == "zero" and dtype == "I32" and scheme is not None and scheme.format == "gptq":
        return How("zeros", None, 4, bits=scheme.bits if zeros_less_one and scheme.bits in (2, 4, 8) else 0)
    return How("bits", None, width, codes=_codes(dtype, role))


def _codes(dtype: str, role: Role) -> str:
    scheme = role.scheme
    if role.role != "weight" or scheme is None:
        return ""
    if dtype == "I8" and scheme.bits == 8:
        return "int8"
    if scheme.bits != 4 or dtype not in ("U8", "I32", "F4"):
        return ""
    return "fp4" if scheme.kind in ("float", "mx") else "int4" if scheme.kind == "int" else ""


def _scale_fields(kind: str) -> tuple[tuple[int, Number], ...]:
    found, at = [], 0
    for name, size in FIELDS.get(kind, ()):
        if name in ("d", "m"):
            found.append((at, NUMBERS["F16"]))
        elif name == "e":
            found.append((at, NUMBERS["F8_E8M0"]))
        at += size
    return tuple(found)


def measure(seen: Seen, data: memoryview, begin: int, how: How) -> None:
    """data: bytes [begin, begin + len(data)) of the tensor, whole elements of it."""
    import numpy as np

    seen.nbytes += len(data)
    data = data[: len(data) // how.width * how.width]  # a lying header may end inside an element
    if not data:
        return
    if how.kind == "blocks":
        _blocks(seen, np.frombuffer(data, np.uint8), begin, how)
        return
    bits: Bits = np.frombuffer(data, f"u{how.width}")
    if not bits.flags.aligned:
        bits = bits.copy()
    first = begin // how.width
    seen.elements += bits.size
    if how.number is not None:
        if how.kind == "scale":
            _scales(seen, bits, first, how.number)
        _floats(seen, bits, first, begin, how.number)
    elif how.kind == "g_idx":
        _group_numbers(seen, bits, first, how.group)
    else:
        _integers(seen, bits, begin)
        if how.kind == "zeros":
            _zero_points(seen, bits, first, how.bits)
    if how.codes:
        _saturation(seen, bits[: SAMPLE // how.width], how.codes)


def _highest(seen: Seen, bits: Bits, begin: int) -> int:
    """The largest of the bits; rows of nothing but zeros are noted on the way."""
    per_row = ROW // bits.itemsize
    rows = bits.size // per_row
    if rows < 2:
        return int(bits.max())
    tops = bits[: rows * per_row].reshape(rows, per_row).max(axis=1)
    top = int(tops.max())
    if rows * per_row < bits.size:
        top = max(top, int(bits[rows * per_row :].max()))
    if not tops.all():
        empty = (tops == 0).nonzero()[0]
        seen.empty += int(empty.size) * ROW
        seen.first_empty = earlier(seen.first_empty, begin + int(empty[0]) * ROW)
    return top


def _floats(seen: Seen, bits: Bits, first: int, begin: int, number: Number) -> None:
    top = _highest(seen, bits, begin)
    mask = number.mask
    if not number.signed:
        positive, negative = top, 0
    else:
        signed = bits.view(f"i{bits.itemsize}")
        positive, negative = max(0, int(signed.max())), top & mask if top > mask else 0
        if number.fnuz:
            _fnuz(seen, bits, signed, first, positive)
            return
    if max(positive, negative) >= number.nonfinite:
        positive, negative = _nonfinite(seen, bits, first, number)
    seen.positive, seen.negative = max(seen.positive, positive), max(seen.negative, negative)


def _nonfinite(seen: Seen, bits: Bits, first: int, number: Number) -> tuple[int, int]:
    """Count what is no finite number; the extremes of what is."""
    import numpy as np

    magnitudes = bits & np.asarray(number.mask, bits.dtype)
    bad = magnitudes >= number.nonfinite
    inf = 0 if number.infinite is None else int(np.count_nonzero(magnitudes == number.infinite))
    seen.bad(int(np.count_nonzero(bad)) - inf, inf, first + int(bad.argmax()))
    below = bits > number.mask
    sides = (magnitudes[~bad & ~below], magnitudes[~bad & below])
    positive, negative = (int(side.max(initial=0)) for side in sides)
    return positive, negative


def _fnuz(seen: Seen, bits: Bits, signed: NDArray[Any], first: int, positive: int) -> None:
    """The bits of -0 are the one NaN; every other pattern is a number."""
    import numpy as np

    bad = bits == 0x80
    nan = int(np.count_nonzero(bad))
    if nan:
        seen.bad(nan, 0, first + int(bad.argmax()))
    below = bits[bits > 0x80]
    seen.positive = max(seen.positive, positive)
    seen.negative = max(seen.negative, int(below.max() & 0x7F) if below.size else 0)


def _scales(seen: Seen, bits: Bits, first: int, number: Number) -> None:
    """Scales are few: constant, zero and denormal ones are looked for, too."""
    import numpy as np

    seen.range(int(bits.min()), int(bits.max()))
    if not number.normal:
        return
    magnitudes = bits & np.asarray(number.mask, bits.dtype)
    if int(magnitudes.min()) >= number.normal:
        return
    zero = magnitudes == 0
    count = int(np.count_nonzero(zero))
    if count:
        at = zero.nonzero()[0][:KEEP]
        seen.zero(count, (first + at).tolist())
    seen.denormal += int(np.count_nonzero(magnitudes < number.normal)) - count


def _integers(seen: Seen, bits: Bits, begin: int) -> None:
    top = _highest(seen, bits, begin)
    seen.range(int(bits.min()), top)
    seen.positive = max(seen.positive, top)


def _zero_points(seen: Seen, bits: Bits, first: int, width: int) -> None:
    import numpy as np

    if first == 0:
        seen.head = tuple(bits[:HEAD_WORDS].tolist())
    if width:
        true = bits + np.uint32(sum(1 << shift for shift in range(0, 32, width)))
        fields = range(0, 32, width)
        seen.borrowed += sum(int(np.count_nonzero((true >> s & ((1 << width) - 1)) == 0)) for s in fields)


def _group_numbers(seen: Seen, bits: Bits, first: int, group: int) -> None:
    import numpy as np

    seen.range(int(bits.min()), int(bits.max()))
    seen.positive = max(seen.positive, int(bits.max()))
    wrong = bits != np.arange(first, first + bits.size, dtype=np.uint32) // group
    count = int(np.count_nonzero(wrong))
    if count:
        seen.wrong += count
        seen.first_wrong = earlier(seen.first_wrong, first + int(wrong.argmax()))


def _saturation(seen: Seen, bits: Bits, codes: str) -> None:
    import numpy as np

    raw = bits.view(np.uint8)
    if codes == "e4m3":
        ends = (raw & 0x7F) == 0x7E
    elif codes == "int8":
        ends = (raw == 0x7F) | (raw == 0x80) | (raw == 0x81)
    else:
        nibbles = np.concatenate((raw & 15, raw >> 4))
        ends = (nibbles & 7) == 7 if codes == "fp4" else (nibbles == 0) | (nibbles == 15)
    seen.sampled += ends.size
    seen.saturated += int(np.count_nonzero(ends))


def _blocks(seen: Seen, raw: NDArray[np.uint8], begin: int, how: How) -> None:
    """GGUF: the scales inside the blocks can be NaN or infinite; the codes are integers."""
    import numpy as np

    top = _highest(seen, raw, begin)
    seen.positive = max(seen.positive, top)
    blocks = raw.reshape(-1, how.width)
    seen.elements += blocks.shape[0]
    first = begin // how.width
    for offset, number in how.fields:
        field = np.ascontiguousarray(blocks[:, offset : offset + number.nbytes]).view(f"u{number.nbytes}")[:, 0]
        bad = (field & np.asarray(number.mask, field.dtype)) >= number.nonfinite
        if bad.any():
            infinite = -1 if number.infinite is None else number.infinite
            inf = int(np.count_nonzero((field & np.asarray(number.mask, field.dtype)) == infinite))
            seen.bad(int(np.count_nonzero(bad)) - inf, inf, first + int(bad.argmax()))
