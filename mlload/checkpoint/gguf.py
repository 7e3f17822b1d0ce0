"""The header of a GGUF file: metadata, and where each tensor lies.

    4 bytes    "GGUF"
    u32        version: 2 or 3
    u64 u64    number of tensors, number of key-values
    key-values key (u64 length, bytes), u32 type, value
    tensors    name, u32 number of dimensions, u64 each, u32 type, u64 offset from the data's start
    padding    to a multiple of `general.alignment` (32), then the data

Dimensions run from the fastest: a weight [N, K] is written (K, N), blocks along K. Shapes here are torch's.
Source: ggml docs/gguf.md and ggml/src/gguf.cpp.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from mlload.checkpoint.gguf_types import (
    ARRAY,
    BLOCK_TYPES,
    REMOVED_TYPES,
    SCALAR_BYTES,
    SCALARS,
    STRING,
    UINT32,
    VALUE_NAMES,
)
from mlload.checkpoint.json_text import quote
from mlload.checkpoint.sources.base import Source
from mlload.checkpoint.tensor import TensorRef
from mlload.checkpoint.window import CutOff, TooLong, Window

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

# Bounds against lying counts, far above what real files hold.
MAX_KEYS = 65_536
MAX_TENSORS = 1_000_000
MAX_ELEMENTS = 4_000_000  # of all arrays of one file
MAX_KEPT = 4_096  # longer arrays are skipped, and their length kept
MAX_TEXT = 16 * 1024 * 1024
MAX_NESTING = 4
MAX_DIMENSIONS = 4


class LongArray(NamedTuple):
    """An array that was skipped: the name of its element type, and how many there are."""

    element: str
    length: int


class Bad(Exception):
    """What is wrong: a finding's code, and a sentence without the file's name."""

    def __init__(self, code: str, message: str, **numbers: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.numbers = numbers


class GgufHeader(NamedTuple):
    """metadata: keys as stored, long arrays as LongArray; problem: what stopped the reading, or None."""

    version: int
    big_endian: bool
    metadata: dict[str, Any]
    tensors: list[TensorRef]
    data_start: int
    size: int
    raw: bytes
    problems: list[Bad]


def read_gguf(source: Source, name: str, size: int, file: int, *, kept: int = MAX_KEPT) -> GgufHeader:
    """The header of one file. What is wrong is in `problems`; tensors before it are there.

    kept: longer arrays are skipped; a vocabulary has hundreds of thousands of entries
    """
    reader = _Reader(Window(source, name, size), file, kept)
    try:
        reader.run()
    except CutOff as cut:
        message = f"{reader.doing} would end at byte {cut.end:,} of a {cut.size:,}-byte file"
        if isinstance(cut, TooLong):
            message = f"{reader.doing} would end at byte {cut.end:,}, and no header is that long"
        elif cut.end > 2**62:
            message = f"{reader.doing} claims a length that no file has"
        reader.problems.append(Bad("FI041", message, end=min(cut.end, 2**63), size=cut.size))
    except Bad as bad:
        reader.problems.append(bad)
    return GgufHeader(
        reader.version,
        reader.order == ">",
        reader.metadata,
        reader.tensors,
        reader.data_start,
        size,
        bytes(reader.window.data[: reader.position]),
        reader.problems,
    )


class _Reader:
    def __init__(self, window: Window, file: int, kept: int = MAX_KEPT) -> None:
        self.window = window
        self.kept = kept
        self.file = file
        self.position = 0
        self.order = "<"
        self.version = 0
        self.metadata: dict[str, Any] = {}
        self.tensors: list[TensorRef] = []
        self.data_start = 0
        self.problems: list[Bad] = []
        self.doing = "the magic"
        self.elements = 0

    def run(self) -> None:
        if self.take(4) != MAGIC:
            shown = quote(ascii(bytes(self.window.data[:4]))[2:-1])
            raise Bad("FI040", f"it starts with {shown}, where GGUF is expected")
        self.doing = "the version"
        version = self.integer("I")
        if version & 0xFFFF == 0 and version:
            self.order = ">"
            version = int.from_bytes(version.to_bytes(4, "little"), "big")
            message = "its numbers are big-endian, for machines that no engine of today runs on"
            self.problems.append(Bad("FI046", message))
        self.version = version
        if version not in VERSIONS:
            raise Bad("FI040", f"it is of version {version}, and readers know 2 and 3", version=version)
        self.doing = "the counts of tensors and keys"
        tensor_count = self.integer("Q")
        key_count = self.integer("Q")
        # 13 bytes are the shortest key-value, 24 the shortest tensor entry.
        left = self.window.size - self.position
        if key_count > MAX_KEYS or key_count * 13 > left:
            raise Bad("FI041", f"it claims {key_count:,} metadata keys in {left:,} bytes", keys=key_count, size=left)
        if tensor_count > MAX_TENSORS or tensor_count * 24 > left:
            message = f"it claims {tensor_count:,} tensors in {left:,} bytes"
            raise Bad("FI041", message, tensors=tensor_count, size=left)
        self.keys(key_count)
        alignment = self.alignment()
        entries = [self.entry(number, tensor_count) for number in range(tensor_count)]
        self.data_start = -(-self.position // alignment) * alignment
        self.place(entries, alignment)

    # Reading values

    def take(self, count: int) -> bytes:
        end = self.position + count
        self.window.need(end)
        piece = bytes(self.window.data[self.position : end])
        self.position = end
        return piece

    def integer(self, form: str) -> int:
        value: int = struct.unpack(self.order + form, self.take(struct.calcsize(form)))[0]
        return value

    def text(self) -> bytes:
        length = self.integer("Q")
        if length > MAX_TEXT and length <= self.window.size - self.position:
            raise Bad("FI041", f"{self.doing} has a text of {length:,} bytes", length=length)
        return self.take(length)

    def keys(self, count: int) -> None:
        seen = {"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count"}
        self.key_types: dict[str, int] = {}
        for number in range(count):
            self.doing = f"metadata key {number + 1} of {count:,}"
            try:
                key = self.text().decode("utf-8")
            except UnicodeDecodeError:
                raise Bad("FI041", f"{self.doing} is not UTF-8") from None
            self.doing = f"the value of metadata key {quote(key)}"
            kind = self.integer("I")
            value = self.value(kind, 0)
            if key in seen:
                self.problems.append(Bad("FI045", f"the metadata key {quote(key)} comes twice"))
                continue
            seen.add(key)
            self.metadata[key] = value
            self.key_types[key] = kind

    def value(self, kind: int, nesting: int) -> Any:
        if kind == STRING:
            return self.text().decode("utf-8", "replace")
        if kind in SCALARS:
            return struct.unpack(self.order + SCALARS[kind], self.take(SCALAR_BYTES[kind]))[0]
        if kind != ARRAY:
            raise Bad("FI041", f"{self.doing} has the type {kind}, which does not exist", type=kind)
        if nesting >= MAX_NESTING:
            raise Bad("FI041", f"{self.doing} nests arrays more than {MAX_NESTING} deep")
        element = self.integer("I")
        count = self.integer("Q")
        return self.array(element, count, nesting)

    def array(self, element: int, count: int, nesting: int) -> Any:
        shortest = SCALAR_BYTES.get(element, 8 if element == STRING else 12)
        if element not in VALUE_NAMES:
            if count == 0:
                return []
            raise Bad("FI041", f"{self.doing} is an array of the type {element}, which does not exist", type=element)
        if count * shortest > self.window.size - self.position:
            raise CutOff(self.position + count * shortest, self.window.size)
        self.elements += count
        if self.elements > MAX_ELEMENTS:
            raise Bad("FI041", f"{self.doing} is an array of {count:,} {VALUE_NAMES[element]}s", elements=count)
        if element in SCALARS:
            self.window.need(self.position + count * shortest)
            if count > self.kept:
                self.position += count * shortest
                return LongArray(VALUE_NAMES[element], count)
            return list(struct.unpack(f"{self.order}{count}{SCALARS[element]}", self.take(count * shortest)))
        if count > self.kept:
            if element == STRING:
                self.skip_texts(count)
            else:
                for _ in range(count):
                    self.value(element, nesting + 1)
            return LongArray(VALUE_NAMES[element], count)
        return [self.value(element, nesting + 1) for _ in range(count)]

    def skip_texts(self, count: int) -> None:
        """Over a vocabulary: hundreds of thousands of texts, none of them built."""
        window, position = self.window, self.position
        data = window.data
        unpack = struct.Struct(self.order + "Q").unpack_from
        available = len(data)
        for _ in range(count):
            if position + 8 > available:
                window.need(position + 8)
                available = len(data)
            position += 8 + unpack(data, position)[0]
            if position > window.size:
                raise CutOff(position, window.size)
        self.position = position
        window.need(position)

    def alignment(self) -> int:
        value = self.metadata.get("general.alignment")
        if value is None:
            return DEFAULT_ALIGNMENT
        if self.key_types["general.alignment"] != UINT32:
            told = VALUE_NAMES.get(self.key_types["general.alignment"], "?")
            raise Bad("FI042", f"general.alignment is of the type {told}, where uint32 is expected")
        if value == 0 or value & (value - 1):
            raise Bad("FI042", f"general.alignment is {value}, which is no power of two", alignment=value)
        return int(value)

    def entry(self, number: int, count: int) -> tuple[str, tuple[int, ...], int, int]:
        """(name, dimensions as stored, type, offset)"""
        self.doing = f"the entry of tensor {number + 1} of {count:,}"
        try:
            name = self.text().decode("utf-8")
        except UnicodeDecodeError:
            raise Bad("FI041", f"the name in {self.doing} is not UTF-8") from None
        dimensions = self.integer("I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            message = f"{quote(name)} has {dimensions} dimensions, and there can be 1 to {MAX_DIMENSIONS}"
            raise Bad("FI042", message, dimensions=dimensions)
        dims = struct.unpack(f"{self.order}{dimensions}Q", self.take(8 * dimensions))
        kind = self.integer("I")
        offset = self.integer("Q")
        return name, dims, kind, offset

    # Tensors against the file

    def place(self, entries: list[tuple[str, tuple[int, ...], int, int]], alignment: int) -> None:
        seen: set[str] = set()
        size = self.window.size
        unknown: list[Bad] = []
        past: list[tuple[str, int, int]] = []
        for name, dims, kind, offset in entries:
            if name in seen:
                self.problems.append(Bad("FI045", f"the tensor {quote(name)} comes twice", tensor=name))
                continue
            seen.add(name)
            block = BLOCK_TYPES.get(kind)
            if block is None:
                told = f"the removed type {REMOVED_TYPES[kind]}" if kind in REMOVED_TYPES else "an unknown type"
                unknown.append(Bad("FI042", f"{quote(name)} is of {told} ({kind})", tensor=name, type=kind))
                continue
            count, span = 1, block.nbytes
            for dim in dims:
                count *= dim
                span *= max(dim, 1)
            if span >= 2**63 and count == 0:
                message = f"{quote(name)} has {' x '.join(map(str, dims))} elements, more than can be counted"
                unknown.append(Bad("FI042", message, tensor=name))
                continue
            if dims[0] % block.elements:
                message = (
                    f"{quote(name)} has rows of {dims[0]:,} elements, and {block.name} stores blocks of "
                    f"{block.elements}: {dims[0]} % {block.elements} = {dims[0] % block.elements}"
                )
                unknown.append(Bad("FI042", message, tensor=name, row=dims[0], block=block.elements))
                continue
            nbytes = count // block.elements * block.nbytes
            start = self.data_start + offset
            if start + nbytes > size:
                past.append((name, start, start + nbytes))
            self.tensors.append(TensorRef(name, block.name, dims[::-1], self.file, start, nbytes))
        if unknown:
            self.problems.append(more(unknown))
        if past:
            self.problems.append(self.cut_off(past))
        self.layout(alignment, bool(unknown))

    def cut_off(self, past: list[tuple[str, int, int]]) -> Bad:
        size = self.window.size
        name, start, _ = min(past, key=lambda item: item[1])
        end = max(item[2] for item in past)
        message = (
            f"it is cut off: {quote(name)} begins at byte {start:,} of a {size:,}-byte file and {len(past):,} "
            f"{'tensors end' if len(past) > 1 else 'tensor ends'} past its end, {end - size:,} bytes are missing"
        )
        if end >= 2**62:
            message = f"{quote(name)} claims bytes that no file has"
        return Bad("FI013", message, tensor=name, offset=start, size=size, missing=end - size, tensors=len(past))

    def layout(self, alignment: int, incomplete: bool) -> None:
        """Overlap, misalignment and gaps. llama.cpp wants each tensor at the padded end of the one before."""
        position, previous = self.data_start, ""
        gaps: list[Bad] = []
        overlaps: list[Bad] = []
        crooked: list[Bad] = []
        for ref in sorted(self.tensors, key=lambda ref: (ref.offset, ref.nbytes)):
            if (ref.offset - self.data_start) % alignment:
                offset = ref.offset - self.data_start
                message = f"{quote(ref.name)} lies at offset {offset:,}, no multiple of {alignment}"
                crooked.append(Bad("FI048", message, tensor=ref.name))
            if ref.offset < position and ref.nbytes:
                message = f"{quote(ref.name)} begins at {ref.offset:,}, before {quote(previous)} ends at {position:,}"
                overlaps.append(Bad("FI014", message, tensor=ref.name))
            elif ref.offset >= position + alignment:
                message = f"{ref.offset - position:,} bytes before {quote(ref.name)} belong to no tensor"
                gaps.append(Bad("FI048", message, bytes=ref.offset - position))
            if ref.offset + ref.nbytes >= position:
                position, previous = ref.offset + ref.nbytes, ref.name
        self.problems += [more(kind) for kind in (crooked, overlaps) if kind]
        if gaps and not incomplete:
            self.problems.append(more(gaps))


def more(problems: list[Bad]) -> Bad:
    """The first of several, with the number of the others."""
    first, count = problems[0], len(problems)
    if count > 1:
        first.message += f" (and {count - 1:,} {'others' if count > 2 else 'other'})"
    first.numbers["count"] = count
    return first
