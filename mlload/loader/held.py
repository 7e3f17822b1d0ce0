"""A rank's segments as reads of files in which whole tensors lie in shares, one of each rank that they were cut for."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.finding import MlloadError
from mlload.loader.reads import Read, pieces
from mlload.plan.plan import Plan
from mlload.plan.segments import Box, Segment
from mlload.writer.boxes import bytes_box, bytes_shape, intersect, moved, volume, whole
from mlload.writer.holdings import Held, Holdings, without


def held_reads(plan: Plan, rank: int, holdings: Holdings, own: str) -> list[Read]:
    """Every read of a rank, in file order. own: what names of the rank's own files begin with; those are preferred,
    so that at the size that the files were cut for a rank reads nothing else."""
    reads = [
        piece
        for segment in plan.segments(rank)
        if segment.tensor in holdings.tensors
        for read in _reads(segment, holdings[segment.tensor], own)
        for piece in pieces(read)
    ]
    reads.sort(key=lambda read: (read.file, read.first))
    return reads


def _reads(segment: Segment, held: Held, own: str) -> Iterator[Read]:
    """The segment's box from the shares that hold it, the rank's own first."""
    one = volume(segment.box) == volume(whole(held.shape)) == 1
    if len(segment.box) != len(held.shape) and (one or not segment.box):
        # A scalar is written as [] or as [1], and a text has any length.
        segment = segment._replace(box=whole(held.shape), to=whole(held.shape))
    pending = [segment.box]
    for stored in sorted(held.stored, key=lambda one: not one.file.startswith(own)):
        for box, place in stored.held:
            rest: list[Box] = []
            for part in pending:
                common = intersect(part, box)
                if common is None:
                    rest.append(part)
                    continue
                rest += without(part, box, common)
                yield Read(
                    segment.tensor,
                    stored.file,
                    stored.offset,
                    bytes_shape(stored.shape, held.dtype),
                    bytes_box(moved(common, box, place), held.dtype),
                    held.dtype,
                    moved(common, segment.box, segment.to) or ((0, 1),),
                )
            pending = rest
    if any(volume(part) for part in pending):
        raise MlloadError(f"{segment.tensor}: the folder does not hold all of it", exit_code=1)
