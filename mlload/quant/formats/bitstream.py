"""Codes packed in 32-bit words and bytes, on numpy arrays.

Word order lo -> hi: the first value lies in the lowest bits. Words are little-endian. All functions work
along the last axis; codes are uint8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

# GPTQModel's planar layout (utils/planar_packing.py): width and offset of each plane, low to high. Per 32 values
# the planes' words follow each other, `bits` words in all.
PLANES: dict[int, tuple[tuple[int, int], ...]] = {
    2: ((2, 0),),
    3: ((2, 0), (1, 2)),
    4: ((4, 0),),
    5: ((4, 0), (1, 4)),
    6: ((4, 0), (2, 4)),
    7: ((4, 0), (2, 4), (1, 6)),
    8: ((8, 0),),
}


def unpack_words(words: Array, bits: int, count: int) -> Array:
    """The first `count` values of a dense stream of int32 words [..., W]: value i at bit i * bits."""
    import numpy as np

    raw = np.ascontiguousarray(words).view(np.uint32)
    if 32 % bits == 0:
        shifts = np.arange(0, 32, bits, dtype=np.uint32)
        fields = (raw[..., None] >> shifts) & np.uint32((1 << bits) - 1)
        return fields.astype(np.uint8).reshape(*raw.shape[:-1], -1)[..., :count]
    stream = np.unpackbits(raw.view(np.uint8), axis=-1, bitorder="little")[..., : count * bits]
    fields = stream.reshape(*raw.shape[:-1], count, bits)
    return np.packbits(fields, axis=-1, bitorder="little")[..., 0]


def pack_words(codes: Array, bits: int) -> Array:
    """[..., count] codes -> [..., ceil(count * bits / 32)] int32 words; what is left of the last word is 0."""
    import numpy as np

    codes = np.ascontiguousarray(codes, dtype=np.uint8)
    count = codes.shape[-1]
    stream = np.unpackbits(codes[..., None], axis=-1, bitorder="little", count=bits).reshape(*codes.shape[:-1], -1)
    missing = -(-count * bits // 32) * 32 - count * bits
    if missing:
        stream = np.concatenate([stream, np.zeros((*stream.shape[:-1], missing), np.uint8)], axis=-1)
    return np.packbits(stream, axis=-1, bitorder="little").view("<u4").view(np.int32)


def unpack_planes(words: Array, bits: int, count: int) -> Array:
    """The first `count` values of a planar stream of int32 words [..., W]."""
    import numpy as np

    blocks = np.ascontiguousarray(words).reshape(*words.shape[:-1], -1, bits)
    codes = np.zeros((*blocks.shape[:-1], 32), np.uint8)
    row = 0
    for width, offset in PLANES[bits]:
        codes |= unpack_words(blocks[..., row : row + width], width, 32) << np.uint8(offset)
        row += width
    return codes.reshape(*words.shape[:-1], -1)[..., :count]


def pack_planes(codes: Array, bits: int) -> Array:
    """[..., count] codes, count a multiple of 32 -> [..., count * bits / 32] int32 words."""
    import numpy as np

    blocks = np.asarray(codes, dtype=np.uint8).reshape(*codes.shape[:-1], -1, 32)
    planes = [pack_words((blocks >> offset) & ((1 << width) - 1), width) for width, offset in PLANES[bits]]
    return np.concatenate(planes, axis=-1).reshape(*codes.shape[:-1], -1)


def unpack_nibbles(packed: Array, *, high_first: bool = False) -> Array:
    """uint8 [..., B] -> codes [..., 2B]; the even one in the low nibble, or in the high one."""
    import numpy as np

    packed = np.asarray(packed).view(np.uint8)
    low, high = packed & 15, packed >> 4
    pair = (high, low) if high_first else (low, high)
    return np.stack(pair, axis=-1).reshape(*packed.shape[:-1], -1)


def pack_nibbles(codes: Array, *, high_first: bool = False) -> Array:
    import numpy as np

    codes = np.asarray(codes, dtype=np.uint8)
    even, odd = codes[..., 0::2], codes[..., 1::2]
    packed: Array = (even << 4) | odd if high_first else even | (odd << 4)
    return packed


def unpack_sextets(packed: Array) -> Array:
    """fp6: uint8 [..., 3B] -> codes [..., 4B], four codes in three bytes, the first in the lowest bits."""
    import numpy as np

    a, b, c = (packed[..., i::3].astype(np.uint32) for i in range(3))
    word = a | (b << 8) | (c << 16)
    fields = (word[..., None] >> np.arange(0, 24, 6, dtype=np.uint32)) & 63
    return fields.astype(np.uint8).reshape(*packed.shape[:-1], -1)


def pack_sextets(codes: Array) -> Array:
    import numpy as np

    quads = np.asarray(codes, dtype=np.uint32).reshape(*codes.shape[:-1], -1, 4)
    word = (quads << np.arange(0, 24, 6, dtype=np.uint32)).sum(-1, dtype=np.uint32)
    three = (word[..., None] >> np.arange(0, 24, 8, dtype=np.uint32)) & 255
    packed: Array = three.astype(np.uint8).reshape(*codes.shape[:-1], -1)
    return packed
