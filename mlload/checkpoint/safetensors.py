"""The header of a safetensors file: where each tensor lies, and every way in which it can be wrong.

    8 bytes   header length n, unsigned little-endian, at most 100,000,000
    n bytes   JSON: name -> {"dtype", "shape", "data_offsets": [begin, end)}, "__metadata__": {str: str}
    the rest  data; offsets count from here and must cover it exactly, without holes or overlap

Source: safetensors/README.md and safetensors/src/tensor.rs of safetensors 0.8.

Two readers of the same thing. `parse_fast` accepts a header that is sound in every respect and
gives up at the first doubt; a checkpoint of 100,000 tensors is read by it alone. What it does not
accept goes to `safetensors_damage.explain`, which is slow and says what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from operator import itemgetter
from typing import Any, NamedTuple

from mlload.checkpoint.safetensors_compact import parse_compact
from mlload.checkpoint.tensor import DTYPE_BITS, TensorRef

MAX_HEADER = 100_000_000  # safetensors/src/tensor.rs MAX_HEADER_SIZE

# Without an index nothing tells how long a header is: most of them fit in this.
FIRST_READ = 64 * 1024


class Header(NamedTuple):
    """tensors in the order of the file; metadata is `__metadata__`, None where it is absent."""

    tensors: list[TensorRef]
    metadata: dict[str, str] | None


class NotSound(Exception):
    """The fast reader has a doubt; carries nothing, since the slow one finds the cause."""


def header_length(head: bytes) -> int:
    """n of a file whose first 8 bytes are in `head`."""
    return int.from_bytes(head[:8], "little")


def guess_header_lengths(weight_map: dict[str, str]) -> dict[str, int]:
    """File name -> bytes that its header probably takes, from the names that an index gives it.

    One entry is about `"name":{"dtype":"BF16","shape":[a,b],"data_offsets":[x,y]},`: 93 bytes with
    numbers of today's sizes, beside the name.
    """
    sizes: dict[str, int] = {}
    for name, file in weight_map.items():
        sizes[file] = sizes.get(file, 512) + len(name) + 100
    return sizes


def _refuse(text: str) -> Any:
    raise NotSound


_loads: Callable[[str], Any] = json.JSONDecoder(parse_float=_refuse, parse_constant=_refuse).decode


def parse_fast(raw: bytes, file: int, data_start: int, file_size: int) -> Header:
    """The header in `raw`, or NotSound.

    file:       index into `Checkpoint.files`, for the refs
    data_start: 8 + header length
    """
    compact = parse_compact(raw, file, data_start, file_size)
    if compact is not None:
        return Header(*compact)
    # A minus sign or a backslash is rare: either may hide what the checks below rely on
    # ("-0" is an integer for Python and none for safetensors; escapes hide a duplicate key).
    if b"\\" in raw or (b"-" in raw and _negative(raw)) or b"true" in raw or b"false" in raw:
        raise NotSound
    if raw[:1] != b"{" or not raw.isascii() or b"\x7f" in raw:
        raise NotSound  # legal, and worth a word
    try:
        entries = _loads(raw.decode("utf-8"))
        metadata = entries.pop("__metadata__", None)
        if "" in entries:
            raise NotSound
        strings = 5 * len(entries)
        if metadata is not None:
            strings += 1 + 2 * len(metadata)
            for value in metadata.values():
                if type(value) is not str:
                    raise NotSound
        # Every string once: with no escapes, each takes two quotes. A duplicate key, at any level,
        # or a key that does not belong leaves quotes over; a {} where a list belongs, a brace.
        if raw.count(b'"') != 2 * strings or raw.count(b"{") != 1 + len(entries) + (metadata is not None):
            raise NotSound
        if raw.count(b",") > 16 * (len(entries) + strings):
            raise NotSound  # tensors of hundreds of dimensions
        tensors = _refs(entries, file, data_start)
    except NotSound:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        raise NotSound from None
    end = data_start
    if tensors:
        last = tensors[-1]
        end = last[4] + last[5]
    if end != file_size:
        raise NotSound
    return Header(tensors, metadata)


def _negative(raw: bytes) -> bool:
    squeezed = raw.translate(None, b" \t\r\n")
    return b"[-" in squeezed or b",-" in squeezed or b":-" in squeezed


def _refs(entries: dict[str, Any], file: int, data_start: int) -> list[TensorRef]:
    """TensorRefs of a header whose tensors follow each other without a hole; else NotSound."""
    bits = DTYPE_BITS
    make = tuple.__new__
    tensors: list[TensorRef] = []
    add = tensors.append
    fields = itemgetter("dtype", "shape", "data_offsets")
    position = 0
    in_order = True
    for name, entry in entries.items():
        dtype, shape, (begin, end) = fields(entry)
        nbytes = end - begin
        # A tensor of no elements passes any of these; safetensors sorts and multiplies with care there.
        if prod(shape) * bits[dtype] != nbytes << 3 or nbytes <= 0:
            raise NotSound
        if begin != position:
            in_order = False
        position = end
        add(make(TensorRef, (name, dtype, tuple(shape), file, data_start + begin, nbytes)))
    if not in_order:
        position = data_start
        for ref in sorted(tensors, key=_offset):
            if ref[4] != position:
                raise NotSound
            position += ref[5]
        tensors.sort(key=_offset)
    return tensors


def _offset(ref: TensorRef) -> int:
    return ref[4]
