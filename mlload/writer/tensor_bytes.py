"""The bytes of whole tensors, for those who compare or convert them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.base import Range
from mlload.writer.boxes import bytes_box, bytes_shape, runs
from mlload.writer.holdings import Holdings
from mlload.writer.ranks import read_ranks

PIECE = 8 * 1024 * 1024


class Described(NamedTuple):
    """dtype and shape of a whole tensor, and its bytes in all"""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int


class Side:
    """A checkpoint of any container whose tensors can be read whole or piece by piece, also a folder of ranks."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.holdings: Holdings | None = None
        self.checkpoint = checkpoint
        cut = read_ranks(checkpoint)
        if cut is not None:
            self.checkpoint, self.holdings = cut
        self._files = [file.name for file in self.checkpoint.files]
        self.tensors = {
            name: Described(ref.dtype, ref.shape, ref.nbytes) for name, ref in self.checkpoint.tensors.items()
        }

    def pieces(self, name: str) -> Iterator[bytes]:
        """All bytes in order, in pieces of PIECE (the last one shorter)."""
        if self.holdings is not None:
            raw = self._assembled(self.holdings, name)
            yield from (raw[start : start + PIECE] for start in range(0, len(raw), PIECE))
            return
        ref = self.checkpoint.tensors[name]
        file = self._files[ref.file]
        for start in range(0, ref.nbytes, PIECE):
            length = min(PIECE, ref.nbytes - start)
            piece = self.checkpoint.source.read(file, ref.offset + start, length)
            if len(piece) != length:
                raise MlloadError(f"{self.checkpoint.label}: {file} ends before {name} does", exit_code=3)
            yield piece

    def whole(self, name: str) -> bytes:
        return b"".join(self.pieces(name))

    def _assembled(self, holdings: Holdings, name: str) -> bytes:
        held = holdings[name]
        shape = bytes_shape(held.shape, held.dtype)
        size = 1
        for length in shape:
            size *= length
        raw = bytearray(size)
        for stored in held.stored:
            own = bytes_shape(stored.shape, held.dtype)
            for box, place in stored.held:
                length, targets = runs(shape, bytes_box(box, held.dtype))
                own_length, sources = runs(own, bytes_box(place, held.dtype))
                step = min(length, own_length)
                to = [at + inner for at in targets for inner in range(0, length, step)]
                fro = [at + inner for at in sources for inner in range(0, own_length, step)]
                pieces = holdings.source.read_many([Range(stored.file, stored.offset + at, step) for at in fro])
                for at, piece in zip(to, pieces, strict=True):
                    if isinstance(piece, Exception):
                        raise piece
                    raw[at : at + step] = piece
        return bytes(raw)
