"""Parts that several ranks hold (KV heads, norms, routers) must be equal before they become one again."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.base import Range
from mlload.plan.segments import Box
from mlload.writer.boxes import bytes_box, bytes_shape, runs
from mlload.writer.holdings import Holdings, Stored, overlaps

PIECE = 8 * 1024 * 1024


def check_replicas(holdings: Holdings) -> int:
    """Compare every byte that is held more than once; returns how many. Raises MlloadError where two differ."""
    total = 0
    for name, held in holdings.tensors.items():
        if len(held.stored) < 2:
            continue
        for one, box, other, other_box in overlaps(held):
            total += _compare(holdings, name, held.dtype, (one, box), (other, other_box))
    return total


def _compare(holdings: Holdings, name: str, dtype: str, one: tuple[Stored, Box], other: tuple[Stored, Box]) -> int:
    lengths = {runs(bytes_shape(stored.shape, dtype), bytes_box(box, dtype))[0] for stored, box in (one, other)}
    # Tensors that are cut alike have equal runs; else the last dim is a run in both.
    start, stop = bytes_box(one[1], dtype)[-1]
    length = lengths.pop() if len(lengths) == 1 else stop - start
    total = 0
    for left, right in zip(_pieces(*one, dtype, length), _pieces(*other, dtype, length), strict=True):
        pieces = holdings.source.read_many([left, right])
        for piece in pieces:
            if isinstance(piece, Exception):
                raise piece
            total += len(piece)
        if pieces[0] != pieces[1]:
            raise MlloadError(
                f"{name} differs between {one[0].file} and {other[0].file}, which hold the same part of it",
                hint="the ranks were not cut from one checkpoint, or one of the files is damaged",
                exit_code=1,
            )
    return total // 2


def _pieces(stored: Stored, box: Box, dtype: str, length: int) -> Iterator[Range]:
    """The bytes of a box, in runs of `length` cut into bounded pieces."""
    run, offsets = runs(bytes_shape(stored.shape, dtype), bytes_box(box, dtype))
    for offset in offsets:
        for start in range(0, run, length):
            for inner in range(0, length, PIECE):
                yield Range(stored.file, stored.offset + offset + start + inner, min(PIECE, length - inner))
