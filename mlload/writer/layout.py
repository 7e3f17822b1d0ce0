"""What is to be written, before a byte is: output files, the tensors in them, and where each byte comes from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import NamedTuple

from mlload.checkpoint.tensor import DTYPE_BITS
from mlload.plan.segments import Box
from mlload.writer.boxes import KEPT, Shape, bytes_shape, whole

FORMAT = {"format": "pt"}


class Take(NamedTuple):
    """A box of a source tensor (in its whole shape) that becomes a box of an output tensor. tensor: "" where both
    have one name, so that all layers can share one Take."""

    tensor: str
    box: Box
    to: Box


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """name, dtype, shape: as its file's header will say
    takes: what fills it; what none of them fills stays zero (an engine's padding rows)
    content: its bytes, for the few that no source holds (an engine's own scalars)
    before: bytes of the container's own that lie in front of its data"""

    name: str
    dtype: str
    shape: Shape
    takes: tuple[Take, ...]
    content: bytes = b""
    before: bytes = b""

    @property
    def nbytes(self) -> int:
        return prod(bytes_shape(self.shape, self.dtype))

    @property
    def boxes(self) -> tuple[tuple[Box, Box], ...]:
        """(box of the source, its place here) of every take."""
        return boxes_of(self.takes)


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One file of tensors.

    name:    below the output folder
    header:  its first bytes, length and padding included
    tensors: in the order of their data, which follow one another
    size:    bytes; what lies behind the last tensor is zero
    seal:    called with a descriptor of the file when all its data is there, for checksums that stand before it
    """

    name: str
    header: bytes
    tensors: Sequence[OutputTensor]
    size: int
    seal: Callable[[int], None] | None = None

    def places(self) -> Iterator[tuple[OutputTensor, int]]:
        """Every tensor with its offset from the start of the file."""
        at = len(self.header)
        for tensor in self.tensors:
            at += len(tensor.before)
            yield tensor, at
            at += tensor.nbytes


@dataclass(frozen=True, slots=True)
class Layout:
    """files: to write; texts: small files with their content (an index, a manifest), by name"""

    files: tuple[OutputFile, ...]
    texts: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(file.size for file in self.files) + sum(map(len, self.texts.values()))


@lru_cache(KEPT)
def boxes_of(takes: tuple[Take, ...]) -> tuple[tuple[Box, Box], ...]:
    return tuple((take.box, take.to) for take in takes)


@lru_cache(KEPT)
def own_takes(pairs: tuple[tuple[Box, Box], ...]) -> tuple[Take, ...]:
    """Takes of the tensor of the same name: equal ones are one object."""
    return tuple(Take("", box, to) for box, to in pairs)


def whole_tensor(name: str, dtype: str, shape: Shape) -> OutputTensor:
    """A tensor that is copied as it is."""
    return OutputTensor(name, dtype, shape, own_takes(((whole(shape), whole(shape)),)))


def output_file(name: str, tensors: Iterable[OutputTensor], metadata: Mapping[str, str] = FORMAT) -> OutputFile:
    """A safetensors file whose data follows the given order, widest elements first so that each is aligned."""
    ordered = tuple(sorted(tensors, key=lambda tensor: -DTYPE_BITS[tensor.dtype]))
    # Entry by entry: as one object the text of a hundred thousand would take many times its own size.
    text = bytearray(b"{")
    if metadata:
        text += b'"__metadata__":' + _compact(dict(metadata)) + b","
    at = 0
    for tensor in ordered:
        entry = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (at, at + tensor.nbytes)}
        text += _compact(tensor.name) + b":" + _compact(entry) + b","
        at += tensor.nbytes
    text[-1:] = b"}" if len(text) > 1 else b"{}"
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + bytes(text)
    return OutputFile(name, header, ordered, len(header) + at)


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def index_text(weight_map: Mapping[str, str], total_size: int) -> bytes:
    """`model.safetensors.index.json`, names sorted as Hugging Face sorts them."""
    document = {"metadata": {"total_size": total_size}, "weight_map": dict(sorted(weight_map.items()))}
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def index_of(files: Sequence[OutputFile]) -> bytes:
    """The index of a set of files; total_size counts tensors, not headers."""
    weight_map = {tensor.name: file.name for file in files for tensor in file.tensors}
    return index_text(weight_map, sum(tensor.nbytes for file in files for tensor in file.tensors))
