"""A file seen through reads that grow as they are needed, never by what the file claims of itself."""

from __future__ import annotations

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.base import Source

FIRST = 1024 * 1024
LARGEST = 16 * 1024 * 1024
LIMIT = 128 * 1024 * 1024  # held at once; no header that an engine reads comes near it


class CutOff(Exception):
    """Bytes beyond the end of the file are wanted; `end` is where they would end."""

    def __init__(self, end: int, size: int) -> None:
        super().__init__(end, size)
        self.end = end
        self.size = size


class TooLong(CutOff):
    """More bytes are wanted than a header can have, though the file has them."""


class Window:
    """The bytes from 0 to what was read so far, in `data`."""

    def __init__(self, source: Source, name: str, size: int, first: int = FIRST) -> None:
        self.source = source
        self.name = name
        self.size = size
        self.data = bytearray()
        self._step = first

    def need(self, end: int) -> None:
        """Make bytes [0, end) available. CutOff beyond the file's end; MlloadError where reading fails."""
        while end > len(self.data):
            if end > self.size:
                raise CutOff(end, self.size)
            if end > LIMIT:
                raise TooLong(end, self.size)
            have = len(self.data)
            piece = self.source.read(self.name, have, min(self._step, self.size - have))
            if not piece:
                raise MlloadError(f"{self.name}: only {have:,} of {self.size:,} bytes can be read", exit_code=3)
            self.data += piece
            self._step = min(self._step * 2, LARGEST)
