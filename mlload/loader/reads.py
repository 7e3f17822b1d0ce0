"""A rank's segments as reads of the source's files, in file order and in pieces of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.tensor import DTYPE_BITS, TensorRef
from mlload.plan.plan import Plan
from mlload.plan.segments import Box, Segment
from mlload.quant.formats.tensors import stored_shape

PIECE = 2 << 20  # bytes of one piece at most: what a buffer holds, and a processor's cache
RUN = 32 << 20  # bytes that one thread reads in a row, so that the kernel sees it coming and reads ahead


class Read(NamedTuple):
    """A box of one stored tensor. The last dim of `shape` and `box` counts bytes.

    name:   of the rank's own tensor
    file:   that holds the source
    offset: of the source tensor in it
    dtype:  as in the file
    to:     box of the rank's own tensor, in elements
    """

    name: str
    file: str
    offset: int
    shape: tuple[int, ...]
    box: Box
    dtype: str
    to: Box

    @property
    def extent(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in self.box)

    @property
    def nbytes(self) -> int:
        return prod(self.extent)

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element of each dim to the next, in the file."""
        found = [1] * len(self.shape)
        for dim in range(len(self.shape) - 2, -1, -1):
            found[dim] = found[dim + 1] * self.shape[dim + 1]
        return tuple(found)

    @property
    def span(self) -> int:
        """Bytes from its first to behind its last, with what lies between."""
        return 1 + sum((size - 1) * stride for size, stride in zip(self.extent, self.strides, strict=True))

    @property
    def first(self) -> int:
        """Offset in the file of its first byte."""
        at = 0
        for size, (start, _) in zip(self.shape, self.box, strict=True):
            at = at * size + start
        return self.offset + at


def rank_reads(plan: Plan, rank: int) -> list[Read]:
    """Every read of a rank, in file order; the pieces cover each of its own tensors once."""
    checkpoint = plan.model.checkpoint
    found = [
        piece
        for segment in plan.segments(rank)
        if (ref := checkpoint.tensors.get(segment.tensor)) is not None
        for piece in pieces(_read(segment, ref, checkpoint))
    ]
    found.sort(key=lambda read: (read.file, read.first))
    return found


def in_runs(reads: Sequence[Read], limit: int = RUN) -> Iterator[list[Read]]:
    """The reads in their order, those of one file together in lists of about `limit` bytes."""
    run: list[Read] = []
    total = 0
    for read in reads:
        if run and (total >= limit or read.file != run[0].file):
            yield run
            run, total = [], 0
        run.append(read)
        total += read.nbytes
    if run:
        yield run


def own_shapes(plan: Plan, rank: int) -> Mapping[str, tuple[tuple[int, ...], Segment]]:
    """Name -> shape of the rank's own tensor of that name, with a segment of it; only what the source has."""
    checkpoint = plan.model.checkpoint
    return {
        segment.tensor: (_own_shape(segment, checkpoint.tensors[segment.tensor]), segment)
        for segment in plan.segments(rank)
        if segment.tensor in checkpoint.tensors
    }


def _own_shape(segment: Segment, ref: TensorRef) -> tuple[int, ...]:
    """A scalar may be stored as [] or as [1], and a text has any length."""
    shape = stored_shape(ref)
    free = not segment.shape or prod(shape) == 1
    return shape if free and len(shape) != len(segment.shape) else segment.shape


def _read(segment: Segment, ref: TensorRef, checkpoint: Checkpoint) -> Read:
    shape = stored_shape(ref)
    box, to = segment.box, segment.to
    if len(box) != len(shape) and (prod(shape) == 1 or not box):
        box = to = tuple((0, size) for size in shape)
    if len(box) != len(shape) or any(stop > size for (_, stop), size in zip(box, shape, strict=True)):
        raise MlloadError(
            f"{segment.tensor} has the shape {list(shape)}, which the config does not expect",
            hint="mlload inspect shows which shapes are expected",
            exit_code=1,
        )
    bits = DTYPE_BITS.get(ref.dtype, 8)
    shape, box, to = shape or (1,), box or ((0, 1),), to or ((0, 1),)
    start, stop = box[-1]
    return Read(
        segment.tensor,
        checkpoint.files[ref.file].name,
        ref.offset,
        (*shape[:-1], (shape[-1] * bits + 7) // 8),
        (*box[:-1], (start * bits // 8, (stop * bits + 7) // 8)),
        ref.dtype,
        to,
    )


def pieces(read: Read, limit: int = PIECE) -> Iterator[Read]:
    """The read cut along its outermost dims into pieces of at most `limit` bytes."""
    if read.nbytes <= limit:
        if read.nbytes:
            yield read
        return
    dim = next(index for index, size in enumerate(read.extent) if size > 1)
    last = dim == len(read.box) - 1
    bits = DTYPE_BITS.get(read.dtype, 8) if last else 8
    step = max(1, limit // (read.nbytes // read.extent[dim]))
    if last:
        step = max(step // 16 * 16, 16)  # whole elements of any dtype
    start, stop = read.box[dim]
    origin = read.to[dim][0]
    for low in range(start, stop, step):
        high = min(low + step, stop)
        place = (origin + (low - start) * 8 // bits, origin + (high - start) * 8 // bits)
        yield from pieces(
            read._replace(
                box=(*read.box[:dim], (low, high), *read.box[dim + 1 :]),
                to=(*read.to[:dim], place, *read.to[dim + 1 :]),
            ),
            limit,
        )
