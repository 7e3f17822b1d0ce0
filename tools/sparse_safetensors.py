"""Writes safetensors files that have a true header and a hole for data: any size, no disk."""

from __future__ import annotations

import json
import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from pathlib import Path
from typing import NamedTuple

from mlload.checkpoint.tensor import DTYPE_BITS


class Entry(NamedTuple):
    """One tensor: name, safetensors dtype, shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * DTYPE_BITS[self.dtype] // 8


def write_sparse(path: Path, entries: Sequence[Entry], metadata: dict[str, str] | None = None) -> int:
    """Write one file; returns the bytes of its data section.

    Tensors lie as safetensors' own writer puts them: widest dtype first, then by name.
    """
    header: dict[str, object] = {"__metadata__": metadata or {"format": "pt"}}
    offset = 0
    for entry in sorted(entries, key=lambda entry: (-DTYPE_BITS[entry.dtype], entry.name)):
        size = entry.nbytes
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": entry.shape,
            "data_offsets": (offset, offset + size),
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as handle:
        handle.write(struct.pack("<Q", len(text)) + text)
        handle.truncate(8 + len(text) + offset)
    return offset


def split(entries: Sequence[Entry], limit: int) -> list[list[Entry]]:
    """Files of at most `limit` bytes, filled in order; a tensor larger than that has a file of its own."""
    ends = list(accumulate(entry.nbytes for entry in entries))
    cuts = _cuts(ends, limit)
    return [list(entries[start:stop]) for start, stop in pairwise(cuts)]


def split_into(entries: Sequence[Entry], count: int) -> list[list[Entry]]:
    """As `split`, with the smallest limit that gives no more than `count` files."""
    ends = list(accumulate(entry.nbytes for entry in entries))
    low, high = 1, ends[-1]
    while low < high:
        middle = (low + high) // 2
        if len(_cuts(ends, middle)) - 1 <= count:
            high = middle
        else:
            low = middle + 1
    return split(entries, low)


def _cuts(ends: Sequence[int], limit: int) -> list[int]:
    """Where files begin, and the end. ends: running sum of the tensors' bytes."""
    cuts = [0]
    while cuts[-1] < len(ends):
        start = cuts[-1]
        before = ends[start - 1] if start else 0
        cuts.append(max(start + 1, bisect_right(ends, before + limit)))
    return cuts


def write_sharded(folder: Path, files: Sequence[Sequence[Entry]], *, digits: int = 5, first: int = 1) -> None:
    """All files and their index; one file alone is `model.safetensors` without an index.

    digits: of the total in the name; publishers differ ("00001-of-000163")
    first:  the first file's number ("00000-of-00014" where it is 0)
    """
    if len(files) == 1:
        write_sparse(folder / "model.safetensors", files[0])
        return
    weight_map: dict[str, str] = {}
    total = 0
    last = len(files) - 1 + first
    for number, entries in enumerate(files, first):
        name = f"model-{number:05d}-of-{last:0{digits}d}.safetensors"
        total += write_sparse(folder / name, entries)
        weight_map.update(dict.fromkeys((entry.name for entry in entries), name))
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
