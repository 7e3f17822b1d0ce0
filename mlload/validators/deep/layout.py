"""Which tensors lie where in a file, and where a block of it may end without cutting an element."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mlload.checkpoint.tensor import TensorRef

QUANTUM = 64  # bytes: a multiple of every plain element's size


class Piece(NamedTuple):
    """Bytes [begin, end) of a tensor, counted from its own first byte, that lie `at` bytes into a block."""

    tensor: TensorRef
    begin: int
    end: int
    at: int


class FileLayout:
    """The tensors of one file by offset, each byte once.

    tensors: those that are streamed
    aliases: name -> name of the tensor with the very same bytes (pickles share storages)
    hidden:  tensors that share some bytes with another; they are not looked at for themselves
    """

    def __init__(self, tensors: Iterable[TensorRef], size: int, quanta: dict[str, int]) -> None:
        """quanta: dtype -> bytes of one block, for dtypes that are stored in blocks (GGUF)."""
        self.size = size
        self.tensors: list[TensorRef] = []
        self.aliases: dict[str, str] = {}
        self.hidden: list[str] = []
        self._quanta = quanta
        end = 0
        for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, -tensor.nbytes)):
            if not tensor.nbytes:
                continue
            if tensor.offset >= end:
                self.tensors.append(tensor)
                end = tensor.offset + tensor.nbytes
            elif self.tensors[-1][1:] == tensor[1:]:
                self.aliases[tensor.name] = self.tensors[-1].name
            else:
                self.hidden.append(tensor.name)
        self._offsets = [tensor.offset for tensor in self.tensors]

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def phase(self) -> int:
        """Where the data begin: what lies a multiple of 64 bytes after it is aligned as in memory."""
        return self._offsets[0] if self._offsets else 0

    def ends(self, start: int, limit: int) -> int:
        """The last offset up to `limit` that cuts no element; above `start` in any case."""
        number = bisect_right(self._offsets, limit - 1) - 1
        if number < 0:
            return limit
        tensor = self.tensors[number]
        if limit >= tensor.offset + tensor.nbytes:
            return limit
        quantum = self._quanta.get(tensor.dtype, QUANTUM)
        end = tensor.offset + (limit - tensor.offset) // quantum * quantum
        return end if end > start else limit

    def pieces(self, start: int, stop: int) -> Iterator[Piece]:
        """What of which tensor lies in the block [start, stop)."""
        number = max(0, bisect_right(self._offsets, start) - 1)
        while number < len(self.tensors):
            tensor = self.tensors[number]
            if tensor.offset >= stop:
                return
            begin, end = max(start, tensor.offset), min(stop, tensor.offset + tensor.nbytes)
            if end > begin:
                yield Piece(tensor, begin - tensor.offset, end - tensor.offset, begin - start)
            number += 1
