"""Files that are no weights: config, tokenizer, templates, code; they go along unchanged."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from mlload.checkpoint.checkpoint import Checkpoint, FileRef
from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.index import leads_outside

PIECE = 8 * 1024 * 1024
WEIGHTS = ("safetensors", "gguf", "torch", "tensorizer")
INDEXES = (".safetensors.index.json", ".bin.index.json")


def carried(checkpoint: Checkpoint, outputs: Sequence[str] = ()) -> tuple[FileRef, ...]:
    """Every file that is neither weights nor their index, nor below one of the `outputs` of this run."""
    root = getattr(checkpoint.source, "root", None)
    below = tuple(
        os.path.relpath(path, os.path.realpath(root)) + "/"
        for path in map(os.path.realpath, outputs)
        if root is not None and path.startswith(os.path.realpath(root) + "/")
    )
    return tuple(
        file
        for file in checkpoint.files
        if file.kind not in WEIGHTS
        and not file.name.endswith(INDEXES)
        and not leads_outside(file.name)
        and not file.name.startswith(below)
    )


def left_behind(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Weight files that no engine reads beside these (`consolidated*`, other formats): they are not copied."""
    return tuple(file.name for file in checkpoint.files if file.kind in WEIGHTS and not file.used)


def content(checkpoint: Checkpoint, file: FileRef) -> Iterator[bytes]:
    """The bytes of a file in pieces."""
    for start in range(0, file.size, PIECE):
        piece = checkpoint.source.read(file.name, start, min(PIECE, file.size - start))
        if len(piece) != min(PIECE, file.size - start):
            raise MlloadError(f"{file.name} became shorter while it was copied", exit_code=3)
        yield piece
