"""Data-free methods: one weight read, quantized and written at a time; everything else copied byte by byte."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType

from mlload.checkpoint.checkpoint import Checkpoint, FileRef
from mlload.quantize.layout import Output
from mlload.quantize.recipe import Recipe
from mlload.quantize.source import SourceTensors
from mlload.quantize.targets import Target, Targets
from mlload.quantize.weights import Values, packed, round_to_nearest
from mlload.writer.carry import content
from mlload.writer.folder import OutputFolder
from mlload.writer.write import allow_files

SYNC_EVERY = 512 * 1024 * 1024
PIECE = 8 * 1024 * 1024


class Sheets:
    """The output's weight files, open: tensors are put at their places in any order."""

    def __init__(self, folder: OutputFolder, output: Output) -> None:
        self.folder = folder
        self.output = output
        self._descriptors: list[int] = []
        self._unsynced = 0

    def __enter__(self) -> Sheets:
        allow_files(len(self.output.layout.files) + 64)
        for file in self.output.layout.files:
            self._descriptors.append(self.folder.create(file.name, file.size, file.header))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)

    def put(self, name: str, raw: bytes, at: int = 0) -> None:
        number, offset = self.output.places[name]
        view = memoryview(raw)
        while view:
            written = os.pwrite(self._descriptors[number], view, offset + at)
            view, at = view[written:], at + written
        self._unsynced += len(raw)

    def put_packed(self, target: Target, values: Values) -> None:
        for suffix, raw in packed(target.scheme, values.parts).items():
            self.put(f"{target.path}.{suffix}", raw)

    def done(self, count: int) -> None:
        """The first `count` units are written; recorded once enough has gathered."""
        if self._unsynced >= SYNC_EVERY:
            self.sync()
            self.folder.record(count)

    def sync(self) -> None:
        for descriptor in self._descriptors:
            os.fsync(descriptor)
        self._unsynced = 0


def write_data_free(
    checkpoint: Checkpoint,
    targets: Targets,
    recipe: Recipe,
    sheets: Sheets,
    progress: Callable[[int], None],
) -> None:
    """Every tensor of the source in its order."""
    source = SourceTensors(checkpoint)
    by_weight = {target.weight: target for target in targets.targets}
    sets = fused_sets(targets.targets)
    largest: dict[str, float] = {}
    done = sheets.folder.done
    for number, (name, ref) in enumerate(checkpoint.tensors.items(), 1):
        target = by_weight.get(name)
        progress(ref.nbytes)
        if number <= done:
            continue
        if target is None:
            copy_tensor(checkpoint, name, sheets)
        else:
            weight = source.finite(name)
            shared = None
            if target.scheme.strategy in ("tensor", "tensor_group"):
                if target.fused not in largest:
                    members = sets[target.fused]
                    largest[target.fused] = max(
                        float(abs(weight if m is target else source.finite(m.weight)).max()) for m in members
                    )
                shared = largest[target.fused]
            values = round_to_nearest(weight, target.scheme, target.dtype, largest=shared, clip=recipe.clip)
            sheets.put_packed(target, values)
        sheets.done(number)


def fused_sets(targets: Iterable[Target]) -> Mapping[str, list[Target]]:
    """The engine's module -> the targets that it is made of."""
    found: dict[str, list[Target]] = {}
    for target in targets:
        found.setdefault(target.fused, []).append(target)
    return found


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
