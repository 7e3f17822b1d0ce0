"""Headers exactly as safetensors' own writer lays them out, read by one pattern: no JSON objects are built.

That layout has no spaces but those at the end, its keys in one order, and no escapes. A header of
600 tensors takes a third less time than through JSON; what differs in any way is left to that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from math import prod

from mlload.checkpoint.tensor import DTYPE_BITS, TensorRef

METADATA = re.compile(r'\{(?:"__metadata__":(\{[^{}\\]*\}),)?')
NUMBER = r"(0|[1-9][0-9]*)"
TENSOR = re.compile(
    r'"([^"\\\x00-\x1f\x7f]+)":\{"dtype":("[A-Z0-9_]+","shape":\[[0-9,]*\]),'
    rf'"data_offsets":\[{NUMBER},{NUMBER}\]\}}[,}}]'
)
# The header's own closing brace behind a tensor that is not the last. No name can look so: it would hold a quote.
EARLY_END = re.compile(r'data_offsets":\[[0-9]+,[0-9]+\]\}\}"')
# Characters of a match outside its four groups.
FIXED = len('"":{"dtype":,"data_offsets":[,]},')
Kind = tuple[str, tuple[int, ...], int]  # dtype, shape, bytes

MAX_DIMS = 16  # more is legal, and worth a word


def parse_compact(
    raw: bytes, file: int, data_start: int, file_size: int
) -> tuple[list[TensorRef], dict[str, str] | None] | None:
    """Tensors in the order of the file and the metadata; None where the header is not of this layout, or not sound.

    file: index into `Checkpoint.files`; data_start: 8 + header length
    """
    if not raw.isascii():
        return None
    text = raw.decode("ascii").rstrip(" ")
    head = METADATA.match(text)
    if head is None or text[-2:] != "}}" or ('}}"' in text and EARLY_END.search(text)):
        return None
    metadata: dict[str, str] | None = None
    if head.group(1) is not None:
        try:
            metadata = json.loads(head.group(1))
        except ValueError:
            return None
        if not all(type(value) is str for value in metadata.values()) or _repeats(head.group(1), metadata):
            return None
    found = TENSOR.findall(text, head.end())
    if sum(map(len, chain.from_iterable(found))) + FIXED * len(found) != len(text) - head.end():
        return None  # something lies between the matches
    tensors = _refs(found, file, data_start)
    if not tensors or data_start + int(found[-1][3]) != file_size:
        return None
    names = {ref[0] for ref in tensors}
    if len(names) != len(tensors) or "__metadata__" in names:
        return None
    return tensors, metadata


def _repeats(text: str, metadata: dict[str, str]) -> bool:
    """Whether a key came twice: without escapes, each text of the result took two quotes."""
    return text.count('"') != 4 * len(metadata)


def _refs(found: Sequence[tuple[str, str, str, str]], file: int, data_start: int) -> list[TensorRef] | None:
    """TensorRefs of tensors that lie one after another in the header's order; else None."""
    make = tuple.__new__
    kinds: dict[str, Kind] = {}  # a look-up in this costs a third of a call of `_kind`
    tensors: list[TensorRef] = []
    add = tensors.append
    before = "0"  # each tensor begins, to the letter, where the one before it ends
    offset = data_start
    for name, kind, begin, end in found:
        if begin != before:
            return None
        before = end
        try:
            dtype, shape, nbytes = kinds[kind]
        except KeyError:
            known = _kind(kind)
            if known is None:
                return None
            dtype, shape, nbytes = kinds[kind] = known
        add(make(TensorRef, (name, dtype, shape, file, offset, nbytes)))
        offset += nbytes
        if data_start + int(end) != offset:
            return None
    return tensors


@lru_cache(maxsize=4096)
def _kind(text: str) -> Kind | None:
    """What `"BF16","shape":[2,3]` says; None where it says none, or not of whole, positive bytes."""
    dtype, _, shape_text = text.partition(',"shape":')
    try:
        shape = tuple(json.loads(shape_text))
        bits = DTYPE_BITS[dtype[1:-1]] * prod(shape)
    except (ValueError, KeyError):
        return None
    if len(shape) > MAX_DIMS or bits <= 0 or bits % 8:
        return None
    return dtype[1:-1], shape, bits // 8
