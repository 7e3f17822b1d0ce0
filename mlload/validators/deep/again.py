"""Second looks: small parts of tensors that the pass found worth it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import Hint
from mlload.checkpoint.hints import download_again
from mlload.checkpoint.tensor import TensorRef

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK = 8 << 20


def fetch_again(checkpoint: Checkpoint, name: str) -> Hint:
    """The way out of damage: the file of a tensor, once more."""
    return download_again(checkpoint.source, checkpoint.files[checkpoint.tensors[name].file].name)


def chunks(checkpoint: Checkpoint, ref: TensorRef, begin: int = 0) -> Iterator[tuple[int, bytes]]:
    """The bytes of a tensor from `begin` on, in pieces: (offset in the tensor, bytes)."""
    name = checkpoint.files[ref.file].name
    while begin < ref.nbytes:
        data = checkpoint.source.read(name, ref.offset + begin, min(CHUNK, ref.nbytes - begin))
        if not data:
            return
        yield begin, data
        begin += len(data)


def first_difference(checkpoint: Checkpoint, one: TensorRef, other: TensorRef) -> int | None:
    """Offset of the first byte at which two tensors of equal size differ, None where they do not."""
    for (begin, mine), (_, theirs) in zip(chunks(checkpoint, one), chunks(checkpoint, other), strict=False):
        if mine != theirs:
            return begin + next(at for at, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b)
    return None


def rows(checkpoint: Checkpoint, ref: TensorRef, start: int, stop: int) -> NDArray[Any]:
    """Rows [start, stop) of the first dim as raw bytes, uint8 [rows, bytes of a row]."""
    import numpy as np

    width = ref.nbytes // ref.shape[0]
    data = checkpoint.source.read(checkpoint.files[ref.file].name, ref.offset + start * width, (stop - start) * width)
    return np.frombuffer(data, np.uint8).reshape(-1, width)


def runs_of_zeros(checkpoint: Checkpoint, ref: TensorRef, begin: int, at_least: int) -> Iterator[tuple[int, int]]:
    """Byte ranges of zeros, of at least `at_least` bytes each, from `begin` on; to 8 bytes exactly."""
    import numpy as np

    start = end = begin
    for position, data in chunks(checkpoint, ref, begin):
        zero = np.frombuffer(data[: len(data) // 8 * 8], np.uint64) == 0
        edges = np.flatnonzero(np.diff(np.concatenate(([False], zero, [False])).astype(np.int8)))
        for left, right in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            if position + left * 8 != end:
                if end - start >= at_least:
                    yield start, end
                start = position + left * 8
            end = position + right * 8
    if end - start >= at_least:
        yield start, end
