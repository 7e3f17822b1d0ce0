"""Which bytes of which source file go where: a layout matched with what the source holds.

Copies are grouped by stored source tensor and ordered as they lie in the source, so that each byte is read
once, in file order, however many ranks want it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from typing import NamedTuple

from mlload.checkpoint.finding import MlloadError
from mlload.plan.segments import Box
from mlload.writer.boxes import Shape, bytes_box, bytes_shape, chunks, intersect, moved, runs, volume
from mlload.writer.columns import Columns, Form
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


def copies(layout: Layout, holdings: Holdings) -> Iterator[Copy]:
    """Every copy that makes the layout, in the order of the source, each made when it is asked for. Raises MlloadError
    where a box is nowhere."""
    wanted = Wanted(layout)
    names = [name for name in holdings.tensors if name in wanted]
    # Tensors that lie in one piece are matched one at a time; shares of several ranks lie apart, and are sorted first.
    whole = [name for name in names if len(holdings[name].stored) == 1]
    cut = [name for name in names if len(holdings[name].stored) != 1]
    whole.sort(key=lambda name: _place(holdings[name].stored[0]))
    one_by_one = (copy for name in whole for copy in _copies(name, wanted, holdings))
    yield from merge(one_by_one, _shares(cut, wanted, holdings), key=lambda copy: (copy.file, copy.offset))


def _place(stored: Stored) -> tuple[str, int]:
    return stored.file, stored.offset


def _shares(names: list[str], wanted: Wanted, holdings: Holdings) -> list[Copy]:
    return sorted(
        (copy for name in names for copy in _copies(name, wanted, holdings)),
        key=lambda copy: (copy.file, copy.offset),
    )


def _copies(name: str, wanted: Wanted, holdings: Holdings) -> Iterator[Copy]:
    """One for each stored share of a source tensor."""
    # Views of one storage begin where others do.
    found: dict[tuple[str, int, Shape], list[Target]] = {}
    for number, offset, tensor in wanted.outputs(name):
        for stored, target in targets(number, offset, tensor, holdings, name):
            found.setdefault((stored.file, stored.offset, stored.shape), []).append(target)
    dtype = holdings[name].dtype
    for (file, at, shape), mine in found.items():
        yield Copy(file, at, bytes_shape(shape, dtype), tuple(mine))


class Wanted:
    """Which output tensors take from a source tensor. Files whose tensors are columns tell it without being walked."""

    def __init__(self, layout: Layout) -> None:
        self.files = layout.files
        self._forms: dict[int, tuple[Form, list[int]]] = {}
        self._by_name: dict[str, list[tuple[int, int, OutputTensor]]] = {}
        for number, file in enumerate(layout.files):
            if isinstance(file.tensors, Columns):
                form = file.tensors.form
                self._forms.setdefault(id(form), (form, []))[1].append(number)
                continue
            for tensor, offset in file.places():
                for name in dict.fromkeys(take.tensor or tensor.name for take in tensor.takes):
                    self._by_name.setdefault(name, []).append((number, offset, tensor))

    def __contains__(self, name: str) -> bool:
        return name in self._by_name or any(name in form.positions for form, _ in self._forms.values())

    def outputs(self, name: str) -> Iterator[tuple[int, int, OutputTensor]]:
        """(number of the file, offset of the tensor's data in it, the tensor)"""
        yield from self._by_name.get(name, ())
        for form, numbers in self._forms.values():
            at = form.positions.get(name)
            if at is not None:
                for number in numbers:
                    yield number, form.offsets[at], self.files[number].tensors[at]


def targets(
    number: int, offset: int, tensor: OutputTensor, holdings: Holdings, only: str | None = None
) -> Iterator[tuple[Stored, Target]]:
    """Where each part of an output tensor is stored. only: parts of that source tensor"""
    shape = bytes_shape(tensor.shape, tensor.dtype)
    for take in tensor.takes:
        name = take.tensor or tensor.name
        if only is not None and name != only:
            continue
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


def jobs(found: Iterable[Copy]) -> Iterator[Job]:
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
