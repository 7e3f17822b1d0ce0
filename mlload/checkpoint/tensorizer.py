"""The table of contents at the start of a tensorizer file.

    5 bytes   "|TZR|"
    u32       version: 1 to 5
    32 bytes  feature flags: 1 encrypted, 2 a version before each entry
    u64       bytes of tensor data, u64 unused, u64 number of tensors
    u64       length of the table, then per tensor: name (u16 length), kind (u8), dtype (u8 length), shape (u8
              count, u32 each; u64 from entry version 5 on), u64 header start, u64 data start, u64 data length

Source: tensorizer/serialization.py of tensorizer 2.12.
"""

from __future__ import annotations

import struct
from math import prod
from typing import Any, NamedTuple

from mlload.checkpoint.json_text import quote
from mlload.checkpoint.sources.base import Source
from mlload.checkpoint.tensor import DTYPE_BITS, TensorRef
from mlload.checkpoint.window import CutOff, Window

MAGIC = b"|TZR|"
# An entry without data, by which vLLM knows that the names of a file are its own.
MARKER = ".vllm_tensorized_marker"
VERSIONS = range(1, 6)
MAX_TABLE = 256 * 1024 * 1024
MAX_TENSORS = 1_000_000
ENCRYPTED, VERSIONED = 1, 2
LONG_SHAPES = 5  # the entry version from which dimensions take 8 bytes

_HEADER = struct.Struct("<5sI32sQ8xQQ")
_PLACE = struct.Struct("<3Q")

_TORCH: dict[str, str] = {
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
}
_NUMPY: dict[str, str] = {
    "f8": "F64",
    "f4": "F32",
    "f2": "F16",
    "i8": "I64",
    "i4": "I32",
    "i2": "I16",
    "i1": "I8",
    "u1": "U8",
    "u2": "U16",
    "u4": "U32",
    "u8": "U64",
    "b1": "BOOL",
    "?": "BOOL",
    "c8": "C64",
}


class TensorizerFile(NamedTuple):
    """problems: (code, sentence without the file's name, numbers)"""

    version: int
    encrypted: bool
    tensors: list[TensorRef]
    problems: list[tuple[str, str, dict[str, Any]]]
    raw: bytes


def read_tensorizer(source: Source, name: str, size: int, file: int) -> TensorizerFile:
    """Tensors that the table of contents names."""
    window = Window(source, name, size, first=512 * 1024)
    problems: list[tuple[str, str, dict[str, Any]]] = []
    tensors: list[TensorRef] = []
    version, flags = 0, 0
    try:
        window.need(_HEADER.size)
        magic, version, feature, _, count, length = _HEADER.unpack_from(window.data, 0)
        flags = int.from_bytes(feature, "little")
        if magic != MAGIC:
            shown = quote(ascii(magic)[2:-1])
            problems.append(("FI066", f"starts with {shown}, where |TZR| is expected", {"size": size}))
        elif version not in VERSIONS:
            problems.append(("FI066", f"is of version {version:,}, and 1 to 5 are known", {"version": version}))
        elif length > MAX_TABLE or count > MAX_TENSORS:
            message = f"claims {count:,} tensors in a table of {length:,} bytes"
            problems.append(("FI066", message, {"tensors": count, "table": length}))
        else:
            window.need(_HEADER.size + length)
            _entries(window, length, count, bool(flags & VERSIONED), file, tensors, problems)
    except CutOff as cut:
        problems.append(
            ("FI066", f"is cut off: its table ends at byte {cut.end:,} of {cut.size:,}", {"size": cut.size})
        )
    except (struct.error, IndexError, UnicodeDecodeError):
        problems.append(("FI066", f"has a damaged table after {len(tensors):,} tensors", {"tensors": len(tensors)}))
    past = [ref for ref in tensors if ref.offset + ref.nbytes > size]
    if past:
        end = max(ref.offset + ref.nbytes for ref in past)
        message = f"is cut off: {len(past)} tensors end past its {size:,} bytes, first {quote(past[0].name)}"
        problems.append(("FI013", message, {"tensors": len(past), "missing": end - size}))
    return TensorizerFile(version, bool(flags & ENCRYPTED), tensors, problems, bytes(window.data[: _HEADER.size]))


def _entries(
    window: Window,
    length: int,
    count: int,
    versioned: bool,
    file: int,
    tensors: list[TensorRef],
    problems: list[tuple[str, str, dict[str, Any]]],
) -> None:
    table = memoryview(window.data)[_HEADER.size : _HEADER.size + length]
    position = 0
    for _ in range(count):
        long_shape = False
        if versioned:
            long_shape = struct.unpack_from("<I", table, position)[0] >= LONG_SHAPES
            position += 4
        name_length = struct.unpack_from("<H", table, position)[0]
        position += 2
        name = str(bytes(table[position : position + name_length]), "utf-8")
        position += name_length + 1
        dtype_length = table[position]
        dtype = str(bytes(table[position + 1 : position + 1 + dtype_length]), "utf-8")
        position += 1 + dtype_length
        form = f"<{table[position]}{'Q' if long_shape else 'I'}"
        shape = struct.unpack_from(form, table, position + 1)
        position += 1 + struct.calcsize(form)
        _, start, nbytes = _PLACE.unpack_from(table, position)
        position += _PLACE.size
        known = dtype_name(dtype)
        bits = DTYPE_BITS.get(known)
        if bits is not None and nbytes and prod(shape) * bits != nbytes * 8 and len(shape) <= 16:
            message = (
                f"gives {quote(name)} {nbytes:,} bytes, and {known} {list(shape)} takes {prod(shape) * bits // 8:,}"
            )
            problems.append(("FI012", message, {"tensor": name}))
        tensors.append(TensorRef(name, known, shape, file, start, nbytes))


def dtype_name(text: str) -> str:
    """safetensors' name for a dtype written as numpy's ("<f4") or, for what numpy lacks, as the numpy type
    that carries it, NUL and torch's name ("<V2\\0torch.bfloat16"); others stay as they are."""
    numpy_name, _, torch_name = text.partition("\0")
    if torch_name:
        return _TORCH.get(torch_name.removeprefix("torch."), torch_name)
    return _NUMPY.get(numpy_name.lstrip("<>=|"), numpy_name)
