"""The output's files: weights put at their places, everything else copied byte by byte."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from types import TracebackType

from torch import Tensor

from mlload.checkpoint.checkpoint import Checkpoint, FileRef
from mlload.quant.algorithms.integer import Grid
from mlload.quantize.layout import Output
from mlload.quantize.recipe import Recipe
from mlload.quantize.slabs import Quantizer, jobs
from mlload.quantize.targets import Target, Targets
from mlload.quantize.weights import packed_rows
from mlload.writer.carry import content
from mlload.writer.folder import OutputFolder
from mlload.writer.write import allow_files

PIECE = 8 * 1024 * 1024


class Sheets:
    """The output's weight files, open: tensors are put at their places in any order."""

    def __init__(self, folder: OutputFolder, output: Output) -> None:
        self.folder = folder
        self.output = output
        self.descriptors: list[int] = []

    def __enter__(self) -> Sheets:
        allow_files(len(self.output.layout.files) + 64)
        for file in self.output.layout.files:
            self.descriptors.append(self.folder.create(file.name, file.size, file.header))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)

    def put(self, name: str, raw: bytes, at: int = 0) -> None:
        number, offset = self.output.places[name]
        view = memoryview(raw)
        while view:
            written = os.pwrite(self.descriptors[number], view, offset + at)
            view, at = view[written:], at + written

    def put_packed(self, target: Target, codes: Tensor, grid: Grid) -> None:
        for suffix, raw in packed_rows(target.scheme, codes, grid, target.dtype).items():
            self.put(f"{target.path}.{suffix}", raw)

    def sync(self) -> None:
        for descriptor in self.descriptors:
            os.fsync(descriptor)


def write_data_free(
    checkpoint: Checkpoint,
    targets: Targets,
    recipe: Recipe,
    sheets: Sheets,
    progress: Callable[[int], None],
    threads: int,
) -> None:
    """Every tensor of the source in its order."""
    quantizer = Quantizer(
        checkpoint,
        targets,
        recipe,
        sheets.output,
        outputs=sheets.descriptors,
        threads=threads,
        step=progress,
        recorded=sheets.folder.record,
    )
    quantizer.run(jobs(checkpoint, targets, sheets.output), sheets.folder.done)


def copy_tensor(checkpoint: Checkpoint, name: str, sheets: Sheets) -> None:
    """In pieces, as it is."""
    ref = checkpoint.tensors[name]
    file = checkpoint.files[ref.file].name
    for start in range(0, ref.nbytes, PIECE):
        sheets.put(name, checkpoint.source.read(file, ref.offset + start, min(PIECE, ref.nbytes - start)), start)


def write_rest(folder: OutputFolder, checkpoint: Checkpoint, output: Output, carry: Iterable[FileRef]) -> None:
    """Files that are no weights: those of the source, then those that this run makes in their stead."""
    for ref in carry:
        if ref.name not in output.layout.texts:
            folder.write(ref.name, content(checkpoint, ref))
    for name, text in output.layout.texts.items():
        folder.write(name, (text,))
