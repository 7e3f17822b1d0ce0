"""Headers exactly as safetensors' own writer lays them out, read by one pattern: no JSON objects are built.

That layout has no spaces but those at the end, its keys in one order, no escapes, and tensors one
after another. A header of 600 tensors takes half the time that it takes through JSON; what differs
in any way is left to that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from math import prod

from mlload.checkpoint.tensor import DTYPE_BITS, TensorRef

Kind = tuple[str, tuple[int, ...], int]  # dtype, shape, bytes

METADATA = re.compile(r'\{(?:"__metadata__":(\{[^{}]*\}),)?')
# Loose for speed: what its groups hold is checked afterwards, each to the letter.
TENSOR = re.compile(r'"([^"]+)":\{"dtype":("[^\]]*\]),"data_offsets":\[([^,]*),([^\]]*)\]\},')
# Characters of a match outside its four groups.
FIXED = len('"":{"dtype":,"data_offsets":[,]},')
KIND = re.compile(r'"([A-Z0-9_]+)","shape":(\[[0-9,]*\])')
UNPRINTABLE = bytes(range(32)) + b"\\\x7f"
MAX_DIMS = 16  # more is legal, and worth a word


def parse_compact(
    raw: bytes, file: int, data_start: int, file_size: int
) -> tuple[list[TensorRef], dict[str, str] | None] | None:
    """Tensors in the order of the file and the metadata; None where the header is not of this layout, or not sound.

    file: index into `Checkpoint.files`; data_start: 8 + header length
    """
    if not raw.isascii() or len(raw.translate(None, UNPRINTABLE)) != len(raw):
        return None
    text = raw.decode("ascii").rstrip(" ")
    head = METADATA.match(text)
    if head is None or text[-2:] != "}}":
        return None
    metadata: dict[str, str] | None = None
    if head.group(1) is not None:
        metadata = _metadata(head.group(1))
        if metadata is None:
            return None
    body = text[head.end() : -1] + ","
    found = TENSOR.findall(body)
    if sum(map(len, chain.from_iterable(found))) + FIXED * len(found) != len(body):
        return None  # something lies between the matches
    tensors = _refs(found, file, data_start)
    if not tensors or tensors[-1][4] + tensors[-1][5] != file_size:
        return None
    names = {ref[0] for ref in tensors}
    if len(names) != len(tensors) or "__metadata__" in names:
        return None
    return tensors, metadata


def _metadata(text: str) -> dict[str, str] | None:
    """The metadata in `text`; None where it is not text to text, or a key came twice."""
    try:
        found: dict[str, str] = json.loads(text)
    except ValueError:
        return None
    # Without escapes each text of the result took two quotes.
    sound = all(type(value) is str for value in found.values()) and text.count('"') == 4 * len(found)
    return found if sound else None


def _refs(found: Sequence[tuple[str, str, str, str]], file: int, data_start: int) -> list[TensorRef] | None:
    """TensorRefs of tensors that lie one after another in the header's order; else None."""
    make = tuple.__new__
    kinds: dict[str, Kind] = {}  # a look-up in this costs a third of a call of `_kind`
    tensors: list[TensorRef] = []
    add = tensors.append
    position = 0
    text = "0"
    for name, kind, begin, end in found:
        try:
            dtype, shape, nbytes = kinds[kind]
        except KeyError:
            known = _kind(kind)
            if known is None:
                return None
            dtype, shape, nbytes = kinds[kind] = known
        if begin != text:
            return None
        add(make(TensorRef, (name, dtype, shape, file, data_start + position, nbytes)))
        position += nbytes
        text = str(position)
        if end != text:
            return None
    return tensors


@lru_cache(maxsize=4096)
def _kind(text: str) -> Kind | None:
    """What `"BF16","shape":[2,3]` says; None where it says none, or not of whole, positive bytes."""
    match = KIND.fullmatch(text)
    if match is None:
        return None
    dtype = match.group(1)
    try:
        shape = tuple(json.loads(match.group(2)))
        bits = DTYPE_BITS[dtype] * prod(shape)
    except (ValueError, KeyError):
        return None
    if len(shape) > MAX_DIMS or bits <= 0 or bits % 8:
        return None
    return dtype, shape, bits // 8
