"""The content of an output file from its first byte to its last, for destinations that only take it in order."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.base import Range, Source
from mlload.plan.segments import Box
from mlload.writer.boxes import bytes_shape, chunks, intersect, moved, runs
from mlload.writer.copies import CHUNK, Copy, Target, targets
from mlload.writer.holdings import Holdings
from mlload.writer.layout import Layout, OutputFile

# Shorter runs are not worth a request each: the rows that they are parts of are read whole.
WORTH_A_REQUEST = 256 * 1024


def contents(layout: Layout, holdings: Holdings) -> Iterator[tuple[OutputFile, Iterator[bytes]]]:
    """Each file with its bytes in pieces of bounded size."""
    for number, file in enumerate(layout.files):
        yield file, _file(number, file, holdings)


def _file(number: int, file: OutputFile, holdings: Holdings) -> Iterator[bytes]:
    yield file.header
    end = len(file.header)
    for tensor, offset in file.places():
        end = offset + tensor.nbytes
        if tensor.before or tensor.content:
            yield tensor.before + tensor.content
        if tensor.content:
            continue
        if not tensor.nbytes:
            continue
        parts = [
            (Copy(stored.file, stored.offset, bytes_shape(stored.shape, tensor.dtype), ()), target)
            for stored, target in targets(number, offset, tensor, holdings)
        ]
        if not parts:
            raise MlloadError(f"{tensor.name} comes from nowhere", exit_code=1)
        for box, start, length in chunks(parts[0][1].shape, CHUNK):
            yield bytes(_piece(box, start, length, parts, holdings.source))
    if end < file.size:
        yield bytes(file.size - end)


def _piece(box: Box, start: int, length: int, parts: list[tuple[Copy, Target]], source: Source) -> bytearray:
    """Bytes [start, start + length) of an output tensor; what no part fills is zero."""
    piece = bytearray(length)
    for copy, target in parts:
        common = intersect(target.to, box)
        if common is None:
            continue
        to_length, places = runs(target.shape, common)
        from_length, offsets = runs(copy.shape, moved(common, target.to, target.box))
        step = min(to_length, from_length)
        tos = [at - start + inner for at in places for inner in range(0, to_length, step)]
        froms = [at + inner for at in offsets for inner in range(0, from_length, step)]
        for to, raw in zip(tos, _read(source, copy, froms, step), strict=True):
            piece[to : to + step] = raw
    return piece


def _read(source: Source, copy: Copy, offsets: list[int], length: int) -> Iterator[bytes]:
    if source.remote and length < WORTH_A_REQUEST and len(offsets) > 1:
        first, last = offsets[0], offsets[-1] + length
        (whole,) = _fetch(source, [Range(copy.file, copy.offset + first, last - first)])
        return (whole[at - first : at - first + length] for at in offsets)
    return iter(_fetch(source, [Range(copy.file, copy.offset + at, length) for at in offsets]))


def _fetch(source: Source, ranges: list[Range]) -> list[bytes]:
    found: list[bytes] = []
    for asked, raw in zip(ranges, source.read_many(ranges), strict=True):
        if isinstance(raw, Exception):
            raise raw
        if len(raw) != asked.length:
            raise MlloadError(f"{asked.name} is shorter than its header says: it has changed", exit_code=3)
        found.append(raw)
    return found
