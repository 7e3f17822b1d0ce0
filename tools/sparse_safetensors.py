"""Writes safetensors files that have a true header and a hole for data: any size, no disk."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
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
    files: list[list[Entry]] = [[]]
    size = 0
    for entry in entries:
        if files[-1] and size + entry.nbytes > limit:
            files.append([])
            size = 0
        files[-1].append(entry)
        size += entry.nbytes
    return files


def split_into(entries: Sequence[Entry], count: int) -> list[list[Entry]]:
    """Exactly `count` files where some limit gives that many, by bisection over the limit; else the nearest above."""
    low, high = 1, sum(entry.nbytes for entry in entries)
    while low < high:
        middle = (low + high) // 2
        if len(split(entries, middle)) <= count:
            high = middle
        else:
            low = middle + 1
    return split(entries, low)


def write_sharded(folder: Path, files: Sequence[Sequence[Entry]], digits: int = 5) -> None:
    """All files and their index; one file alone is `model.safetensors` without an index.

    digits: of the total in the name; publishers differ ("00001-of-000163")
    """
    if len(files) == 1:
        write_sparse(folder / "model.safetensors", files[0])
        return
    weight_map: dict[str, str] = {}
    total = 0
    for number, entries in enumerate(files, 1):
        name = f"model-{number:05d}-of-{len(files):0{digits}d}.safetensors"
        total += write_sparse(folder / name, entries)
        weight_map.update(dict.fromkeys((entry.name for entry in entries), name))
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
