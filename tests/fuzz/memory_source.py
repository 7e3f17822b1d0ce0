"""A checkpoint that exists in memory alone: thousands of them a second."""

from __future__ import annotations

from collections.abc import Sequence

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.base import Range, SourceFile


class MemorySource:
    kind = "folder"
    label = "memory"
    revision: str | None = None
    remote = False

    def __init__(self, contents: dict[str, bytes]) -> None:
        self.contents = contents

    def files(self) -> Sequence[SourceFile]:
        return [SourceFile(name, len(content)) for name, content in sorted(self.contents.items())]

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        if name not in self.contents:
            raise MlloadError(f"{name}: no such file")
        content = self.contents[name]
        return content[start:] if length is None else content[start : start + length]

    def read_many(self, ranges: Sequence[Range]) -> list[bytes | Exception]:
        return [self.read(*piece) for piece in ranges]
