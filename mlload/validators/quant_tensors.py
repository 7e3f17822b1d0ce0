"""What the stored words of a quantized layer say about the label that the config gives them.

Pure functions over integers: whoever reads the bytes decides how many words to hand over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Label = Literal["gptq", "gptq_v2"]


class ZeroLabel(NamedTuple):
    """What GPTQ's zero points show.

    content: the version that the words are of; None where they cannot tell (asymmetric, mixed, too few)
    agrees:  False where that is another version than the label's
    borrowed: fields whose true zero point is 0 under the label: written value by value, their neighbours in a v1 word
             are damaged (counted for widths whose fields do not straddle words)
    """

    content: Label | None
    agrees: bool
    borrowed: int


def symmetric_words(bits: int, version: Label) -> tuple[int, ...]:
    """The run of unsigned 32-bit words that a symmetric file repeats: 2**(b-1) in every field, less one in v1.

    One word for 2, 4 and 8 bits; three for 3 bits, whose 32 values are one dense stream of 96 bits.
    """
    value = (1 << (bits - 1)) - (version == "gptq")
    count = 32 if bits == 3 else 32 // bits
    stream = 0
    for field in range(count):
        stream |= value << (bits * field)
    words = max(1, count * bits // 32)
    return tuple(stream >> (32 * word) & 0xFFFFFFFF for word in range(words))


def gptq_zero_label(words: Sequence[int], bits: int, sym: bool, label: Label = "gptq") -> ZeroLabel:
    """Compares the words of a `qzeros` tensor with what its config calls them.

    words: 32-bit words in stored order, signed or unsigned; for 3 bits from the beginning of a row
    bits:  2, 3, 4 or 8
    sym:   the config's `sym`
    label: the config's `checkpoint_format`
    """
    if bits not in (2, 3, 4, 8):
        raise ValueError(f"no dense zero points of {bits} bits")
    stored = [word & 0xFFFFFFFF for word in words]
    content: Label | None = None
    if sym and stored:
        versions: tuple[Label, Label] = ("gptq", "gptq_v2")
        for version in versions:
            pattern = symmetric_words(bits, version)
            if all(word == pattern[at % len(pattern)] for at, word in enumerate(stored)):
                content = version
    borrowed = 0 if sym or bits == 3 else _zeros(stored, bits, label)
    return ZeroLabel(content, content is None or content == label, borrowed)


def _zeros(stored: Sequence[int], bits: int, label: Label) -> int:
    """Fields whose true zero point is 0. v1 is undone word by word, as its writers subtract."""
    mask = (1 << bits) - 1
    ones = sum(1 << shift for shift in range(0, 32, bits)) if label == "gptq" else 0
    return sum(((word + ones) & 0xFFFFFFFF) >> shift & mask == 0 for word in stored for shift in range(0, 32, bits))
