"""A checkpoint some of whose tensors are wider than on disk: zeros are added while they are read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from math import prod
from typing import Any, NamedTuple

import numpy as np

from mlload.checkpoint.checkpoint import Checkpoint, FileRef
from mlload.checkpoint.sources.base import Range, Source, SourceFile
from mlload.checkpoint.tensor import DTYPE_BITS, TensorRef
from mlload.writer.holdings import fingerprint

FOLDER = "padded/"


class Run(NamedTuple):
    """`length` elements from `start` of the stored axis lie at `place` of the wider one."""

    start: int
    place: int
    length: int


class Padded(NamedTuple):
    """shape: with the zeros; rows, columns: of the dim before the last, and of the last. Dims before are as stored."""

    shape: tuple[int, ...]
    rows: tuple[Run, ...]
    columns: tuple[Run, ...]


class PaddedSource:
    """The source itself, and one more file for each padded tensor: its bytes with the zeros. See `Source`."""

    remote = False

    def __init__(self, base: Source, refs: Mapping[str, tuple[str, TensorRef, Padded]]) -> None:
        """refs: file name -> (stored file, stored tensor, what it becomes)"""
        self.base = base
        self.kind, self.label, self.revision = base.kind, base.label, base.revision
        self.refs = refs
        root = getattr(base, "root", None)
        if root is not None:
            self.root = root

    def files(self) -> Sequence[SourceFile]:
        return self.base.files()

    def read_many(self, ranges: Sequence[Range]) -> list[bytes | Exception]:
        found: list[bytes | Exception] = []
        for asked in ranges:
            if asked.name in self.refs:
                found.append(self.read(*asked))
            else:
                found += self.base.read_many([asked])
        return found

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        if name not in self.refs:
            return self.base.read(name, start, length)
        file, ref, padded = self.refs[name]
        size = DTYPE_BITS[ref.dtype] // 8
        width = padded.shape[-1] * size
        total = prod(padded.shape) * size
        stop = total if length is None else min(total, start + length)
        if stop <= start:
            return b""
        first, last = start // width, -(-stop // width)
        rows = self._rows(file, ref, padded, first, last, size)
        return bytes(rows.tobytes()[start - first * width : stop - first * width])

    def _rows(self, file: str, ref: TensorRef, padded: Padded, first: int, last: int, size: int) -> Any:
        """uint8 [last - first, width] of the wider tensor's rows."""
        out = np.zeros((last - first, padded.shape[-1] * size), np.uint8)
        stored_width = ref.shape[-1] * size
        wide = padded.shape[-2] if len(padded.shape) > 1 else 1
        stored = ref.shape[-2] if len(ref.shape) > 1 else 1
        places = [run.place for run in padded.rows]
        at = first
        while at < last:
            outer, row = divmod(at, wide)
            run = padded.rows[bisect_right(places, row) - 1]
            inside = row - run.place
            following = [place for place in places if place > row]
            until = min(last - at, (following[0] if following else wide) - row)
            count = min(until, run.length - inside)
            if count > 0:
                begin = ref.offset + (outer * stored + run.start + inside) * stored_width
                raw = self.base.read(file, begin, count * stored_width)
                block = np.frombuffer(raw, np.uint8).reshape(-1, stored_width)
                for column in padded.columns:
                    target = out[at - first : at - first + len(block)]
                    target[:, column.place * size : (column.place + column.length) * size] = block[
                        :, column.start * size : (column.start + column.length) * size
                    ]
            at += until
        return out


def padded_checkpoint(
    source: Checkpoint, config: dict[str, Any], tensors: Mapping[str, Padded], identity: str
) -> Checkpoint:
    """The checkpoint as it would be with those tensors and that config; its other tensors keep their places."""
    files, refs, found = list(source.files), {}, dict(source.tensors)
    for name, padded in tensors.items():
        ref = source.tensors[name]
        nbytes = prod(padded.shape) * DTYPE_BITS[ref.dtype] // 8
        refs[FOLDER + name] = (source.files[ref.file].name, ref, padded)
        found[name] = TensorRef(name, ref.dtype, padded.shape, len(files), 0, nbytes)
        files.append(FileRef(FOLDER + name, nbytes, "safetensors", True))
    digest = blake2b(f"{fingerprint(source)} {identity}".encode(), digest_size=16).hexdigest()
    return replace(
        source,
        source=PaddedSource(source.source, refs),
        tensors=found,
        config=config,
        files=tuple(files),
        fingerprint=digest,
    )
