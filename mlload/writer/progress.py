"""A line that says how far a copy is, how fast, and how long it still takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

EVERY_SECONDS = 0.2


class Bar:
    """Counts bytes from any thread; `show` gets a line of text now and then, "" at the end."""

    def __init__(self, show: Callable[[str], None] | None, what: str, total: int) -> None:
        self.show = show
        self.what = what
        self.total = total
        self.done = 0
        self._start = time.monotonic()
        self._next = self._start + 1.0
        self._lock = threading.Lock()

    def step(self, nbytes: int) -> None:
        with self._lock:
            self.done += nbytes
            now = time.monotonic()
            if self.show is not None and now >= self._next:
                self._next = now + EVERY_SECONDS
                self.show(self.text(now - self._start))

    def text(self, seconds: float) -> str:
        rate = self.done / seconds if seconds else 0.0
        left = (self.total - self.done) / rate if rate else 0.0
        share = min(100, self.done * 100 // self.total) if self.total else 100
        return f"{self.what}: {share:3d} %  {rate / 1e6:,.0f} MB/s  {max(0.0, left):,.0f} s left"

    def close(self) -> None:
        if self.show is not None:
            self.show("")
