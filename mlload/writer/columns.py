"""Tensors of per-rank files as columns: a hundred thousand tensors times many ranks, in a few bytes each.

The ranks of one stage hold the same names in the same shapes, so that names, shapes, offsets and the header are there
once for all of them; what differs is which box of the source each one takes, a number of four bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar, overload

from mlload.plan.segments import Box
from mlload.writer.boxes import Shape
from mlload.writer.layout import OutputFile, OutputTensor, Take, boxes_of

T = TypeVar("T")
Pairs = tuple[tuple[Box, Box], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """What equal files share. kinds: number of a (dtype, shape); offsets: of each tensor's data in the file"""

    names: tuple[str, ...]
    kinds: array[int]
    offsets: array[int]
    header: bytes
    positions: dict[str, int]


class Columns(Sequence[OutputTensor]):
    """The tensors of one file, each made when it is asked for."""

    __slots__ = ("cuts", "form", "shared")

    def __init__(self, shared: Shared, form: Form, cuts: array[int]) -> None:
        self.shared = shared
        self.form = form
        self.cuts = cuts

    def __len__(self) -> int:
        return len(self.cuts)

    @overload
    def __getitem__(self, at: int) -> OutputTensor: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[OutputTensor]: ...

    def __getitem__(self, at: int | slice) -> OutputTensor | Sequence[OutputTensor]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        dtype, shape = self.shared.kinds[self.form.kinds[at]]
        return OutputTensor(self.form.names[at], dtype, shape, self.shared.cuts[self.cuts[at]])

    def __iter__(self) -> Iterator[OutputTensor]:
        return map(self.__getitem__, range(len(self)))


class Shared:
    """What the files of one layout have in common."""

    def __init__(self) -> None:
        self.kinds: list[tuple[str, Shape]] = []
        self.cuts: list[tuple[Take, ...]] = []
        self.forms: list[Form] = []
        self._kinds: dict[tuple[str, Shape], int] = {}
        self._cuts: dict[tuple[Take, ...], int] = {}

    def file(self, file: OutputFile) -> OutputFile:
        """The same file with its tensors as columns. They hold no bytes of their own."""
        names = tuple(tensor.name for tensor in file.tensors)
        kinds = array("I", (self._number(self._kinds, self.kinds, (t.dtype, t.shape)) for t in file.tensors))
        cuts = array("I", (self._number(self._cuts, self.cuts, tensor.takes) for tensor in file.tensors))
        form = next((one for one in self.forms if one.kinds == kinds and one.names == names), None)
        if form is None:
            offsets = array("Q", (offset for _, offset in file.places()))
            form = Form(names, kinds, offsets, file.header, {name: at for at, name in enumerate(names)})
            self.forms.append(form)
        return OutputFile(file.name, form.header, Columns(self, form, cuts), file.size)

    @staticmethod
    def _number(known: dict[T, int], listed: list[T], value: T) -> int:
        number = known.get(value)
        if number is None:
            number = known[value] = len(listed)
            listed.append(value)
        return number


class Histories:
    """Which folder takes which boxes of a tensor: one number for each way in which tensors are dealt out.

    A history is (the one before, a folder, its boxes); number 0 is the empty one.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[int, str, Pairs]] = [(0, "", ())]
        self._known: dict[tuple[int, str, Pairs], int] = {}
        self._of: dict[str, int] = {}

    def add(self, name: str, folder: str, takes: tuple[Take, ...]) -> None:
        step = (self._of.get(name, 0), folder, boxes_of(takes))
        number = self._known.get(step)
        if number is None:
            number = self._known[step] = len(self._steps)
            self._steps.append(step)
        self._of[name] = number

    def number(self, name: str) -> int:
        return self._of.get(name, 0)

    def names(self) -> Iterator[str]:
        return iter(self._of)

    def shares(self, number: int) -> dict[str, Pairs]:
        """Folder -> (box of the whole tensor, its place in the stored one), in the order in which they were added."""
        found: list[tuple[str, Pairs]] = []
        while number:
            number, folder, pairs = self._steps[number]
            found.append((folder, pairs))
        return dict(reversed(found))
