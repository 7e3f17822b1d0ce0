"""The central directory of a zip archive, through reads of a few ranges: torch.save's container."""

from __future__ import annotations

import struct
from typing import NamedTuple

from mlload.checkpoint.sources.base import Range, Source

MAX_DIRECTORY = 64 * 1024 * 1024
MAX_COMMENT = 65_535

_END = struct.Struct("<4s4H2IH")  # end of central directory
_LOCATOR = struct.Struct("<4sIQI")  # zip64 locator
_END64 = struct.Struct("<4sQ2H2I4Q")  # zip64 end of central directory
_ENTRY = struct.Struct("<4s6H3I5H2I")  # central directory entry
_LOCAL = struct.Struct("<4s5H3I2H")  # local file header


class Member(NamedTuple):
    """stored: without compression; start: of its local header; size: uncompressed bytes"""

    name: str
    stored: bool
    start: int
    packed: int
    size: int


class BadZip(Exception):
    """Why there is no readable directory, as the end of a sentence."""


def read_directory(source: Source, name: str, size: int) -> dict[str, Member]:
    """Members by name. BadZip where the archive is cut off or contradicts itself."""
    tail_start = max(0, size - MAX_COMMENT - _END.size - _LOCATOR.size)
    tail = source.read(name, tail_start, size - tail_start)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + _END.size > len(tail):
        raise BadZip("has no directory at its end: it is cut off")
    _, _, _, _, count, length, start, _ = _END.unpack_from(tail, at)
    if 0xFFFFFFFF in (length, start) or count == 0xFFFF:
        at -= _LOCATOR.size
        if at < 0 or tail[at : at + 4] != b"PK\x06\x07":
            raise BadZip("has a directory of the 64-bit kind whose place is not told")
        position = _LOCATOR.unpack_from(tail, at)[2]
        if position + _END64.size > size:
            raise BadZip(f"tells of a directory at byte {position:,}, past its end")
        raw = source.read(name, position, _END64.size)
        if len(raw) < _END64.size or raw[:4] != b"PK\x06\x06":
            raise BadZip("has no 64-bit directory where its end tells of one")
        *_, count, length, start = _END64.unpack(raw)
    if start + length > size:
        raise BadZip(f"tells of a directory at bytes {start:,} to {start + length:,}, past its end: it is cut off")
    if length > MAX_DIRECTORY or count * _ENTRY.size > length:
        raise BadZip(f"claims {count:,} members in a directory of {length:,} bytes")
    if tail_start <= start:
        raw = tail[start - tail_start : start - tail_start + length]
    else:
        raw = source.read(name, start, length)
    return _members(raw, count)


def _members(raw: bytes, count: int) -> dict[str, Member]:
    members: dict[str, Member] = {}
    position = 0
    for _ in range(count):
        if position + _ENTRY.size > len(raw) or raw[position : position + 4] != b"PK\x01\x02":
            raise BadZip("has a damaged directory")
        fields = _ENTRY.unpack_from(raw, position)
        flags, method, packed, size = fields[3], fields[4], fields[8], fields[9]
        name_length, extra_length, comment_length, start = fields[10], fields[11], fields[12], fields[16]
        position += _ENTRY.size
        name = raw[position : position + name_length].decode("utf-8" if flags & 0x800 else "latin-1", "replace")
        extra = raw[position + name_length : position + name_length + extra_length]
        size, packed, start = _wide(extra, size, packed, start)
        members[name] = Member(name, method == 0, start, packed, size)
        position += name_length + extra_length + comment_length
    return members


def _wide(extra: bytes, size: int, packed: int, start: int) -> tuple[int, int, int]:
    """Sizes and place from the zip64 extra field, where the 32-bit ones are full."""
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, position)
        position += 4
        if kind == 1:
            values = [
                int.from_bytes(extra[at : at + 8], "little")
                for at in range(position, min(position + length, len(extra)) - 7, 8)
            ]
            if size == 0xFFFFFFFF and values:
                size = values.pop(0)
            if packed == 0xFFFFFFFF and values:
                packed = values.pop(0)
            if start == 0xFFFFFFFF and values:
                start = values.pop(0)
        position += length
    return size, packed, start


def data_starts(source: Source, name: str, members: list[Member], file_size: int) -> list[int]:
    """Where each member's bytes begin: behind its local header, whose length only it tells."""
    pieces = source.read_many([Range(name, member.start, _LOCAL.size) for member in members])
    starts: list[int] = []
    for member, piece in zip(members, pieces, strict=True):
        if isinstance(piece, Exception) or len(piece) < _LOCAL.size or piece[:4] != b"PK\x03\x04":
            raise BadZip(f"has no member at byte {member.start:,}, where its directory tells of {member.name!a}")
        fields = _LOCAL.unpack(piece)
        begin = member.start + _LOCAL.size + fields[9] + fields[10]
        if begin + member.packed > file_size:
            raise BadZip(f"ends inside {member.name!a}")
        starts.append(begin)
    return starts
