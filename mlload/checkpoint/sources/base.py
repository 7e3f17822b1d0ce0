"""What every source of checkpoint files can do: list names with sizes, and read byte ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class SourceFile(NamedTuple):
    """name: path relative to the source's root, "/" between folders; size in bytes; digest: sha256 in hex where
    the source knows it without reading (the Hub's LFS entries), else None; problem: why it cannot be read
    ("dangling link to ..."), else None."""

    name: str
    size: int
    digest: str | None = None
    problem: str | None = None


class Range(NamedTuple):
    """length None means to the end of the file."""

    name: str
    start: int = 0
    length: int | None = None


class Source(Protocol):
    """A folder, a single file, a Hub repository or an fsspec URL.

    kind:     "folder", "file", "hub", "url"
    label:    how to call it in messages (as typed)
    revision: commit hash of a Hub repository, else None
    remote:   reads cost network round trips, so callers should batch them through `read_many`
    """

    kind: str
    label: str
    revision: str | None
    remote: bool

    def files(self) -> Sequence[SourceFile]:
        """All files, sorted by name, without reading any."""
        ...

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes [start, start + length) of one file, fewer at its end. Raises MlloadError where it cannot."""
        ...

    def read_many(self, ranges: Sequence[Range]) -> list[bytes | Exception]:
        """Each range's bytes in the order asked, concurrently where that helps; one failure does not stop the rest."""
        ...
