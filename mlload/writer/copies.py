"""Which bytes of which source file go where: a layout matched with what the source holds.

Copies are grouped by stored source tensor and ordered as they lie in the source, so that each byte is read
once, in file order, however many ranks want it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mlload.checkpoint.finding import MlloadError
from mlload.plan.segments import Box
from mlload.writer.boxes import Shape, bytes_box, bytes_shape, chunks, intersect, moved, runs, volume
from mlload.writer.holdings import Holdings, Stored, without
from mlload.writer.layout import Layout, OutputTensor

CHUNK = 8 * 1024 * 1024  # of a source tensor at once, per thread


class Target(NamedTuple):
    """A box of a stored tensor, and its place in an output file. Boxes and shapes in bytes.

    file:   index into `Layout.files`
    offset: of the output tensor in that file
    shape:  of the output tensor
    box:    of the stored tensor
    to:     of the output tensor
    """

    file: int
    offset: int
    shape: Shape
    box: Box
    to: Box


class Copy(NamedTuple):
    """A stored tensor with everything that is taken from it. shape in bytes."""

    file: str
    offset: int
    shape: Shape
    targets: tuple[Target, ...]


class Job(NamedTuple):
    """A contiguous piece of a source file, and what of it goes where: (output file, offset in it, start in the
    piece, length of a run, runs, from run to run in the output, and in the piece)."""

    file: str
    offset: int
    length: int
    writes: tuple[Write, ...]


class Write(NamedTuple):
    """Runs of `length` bytes each. `sources` count from the start of the job's piece, `places` from the start of
    the output file; where the places follow one another without a gap they are one run."""

    file: int
    length: int
    sources: range | tuple[int, ...]
    places: range | tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return self.length * len(self.sources)


def copies(layout: Layout, holdings: Holdings) -> list[Copy]:
    """Every copy that makes the layout, in the order of the source. Raises MlloadError where a box is nowhere."""
    # Tensors of no elements, and views of one storage, begin where others do.
    wanted: dict[tuple[str, int, Shape, str], tuple[Stored, str, list[Target]]] = {}
    for number, file in enumerate(layout.files):
        for tensor, offset in file.places():
            for stored, dtype, target in _targets(number, offset, tensor, holdings):
                key = (stored.file, stored.offset, stored.shape, dtype)
                if key not in wanted:
                    wanted[key] = (stored, dtype, [])
                wanted[key][2].append(target)
    return [
        Copy(stored.file, stored.offset, bytes_shape(stored.shape, dtype), tuple(targets))
        for _, (stored, dtype, targets) in sorted(wanted.items(), key=lambda item: item[0])
    ]


def _targets(
    number: int, offset: int, tensor: OutputTensor, holdings: Holdings
) -> Iterator[tuple[Stored, str, Target]]:
    shape = bytes_shape(tensor.shape, tensor.dtype)
    for take in tensor.takes:
        name = take.tensor or tensor.name
        held = holdings[name]
        pending = [take.box]
        for stored in held.stored:
            for box, place in stored.held:
                rest: list[Box] = []
                for part in pending:
                    common = intersect(part, box) if part else part
                    if common is None:
                        rest.append(part)
                        continue
                    rest += without(part, box, common)
                    yield (
                        stored,
                        held.dtype,
                        Target(
                            number,
                            offset,
                            shape,
                            bytes_box(moved(common, box, place), held.dtype),
                            bytes_box(moved(common, take.box, take.to), tensor.dtype),
                        ),
                    )
                pending = rest
                if not pending:
                    break
            if not pending:
                break
        if any(volume(part) for part in pending):
            raise MlloadError(f"{name}: the source does not hold all of it", exit_code=1)


def jobs(found: list[Copy]) -> Iterator[Job]:
    """The copies in pieces of bounded size, in order."""
    for copy in found:
        for box, offset, length in chunks(copy.shape, CHUNK):
            writes = tuple(_write(copy, target, box, offset) for target in copy.targets if intersect(target.box, box))
            if writes:
                yield Job(copy.file, copy.offset + offset, length, writes)


def _write(copy: Copy, target: Target, piece: Box, start: int) -> Write:
    common = intersect(target.box, piece)
    assert common is not None
    length, sources = runs(copy.shape, common)
    to_length, places = runs(target.shape, moved(common, target.box, target.to))
    froms, tos = _relative(sources, -start), _relative(places, target.offset)
    # The shorter run divides the longer one: a run of one side may go on in the other.
    if length > to_length:
        froms = _divided(froms, length, to_length)
        length = to_length
    elif to_length > length:
        tos = _divided(tos, to_length, length)
    return Write(target.file, length, froms, tos)


def _relative(offsets: Iterator[int], by: int) -> range | tuple[int, ...]:
    listed = tuple(offsets)
    step = listed[1] - listed[0] if len(listed) > 1 else 1
    even = range(listed[0] + by, listed[-1] + by + 1, step)
    if len(even) == len(listed) and all(a + by == b for a, b in zip(listed, even, strict=True)):
        return even
    return tuple(at + by for at in listed)


def _divided(offsets: range | tuple[int, ...], length: int, into: int) -> range | tuple[int, ...]:
    if len(offsets) == 1:
        return range(offsets[0], offsets[0] + length, into)
    return tuple(at + step for at in offsets for step in range(0, length, into))
