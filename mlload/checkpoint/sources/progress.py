"""A progress line that appears only when something takes longer than a second."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

# Called with one line of text, each replacing the last; "" means done, clear it.
Progress = Callable[[str], None]

# The variable that `--quiet` sets, also for the processes that a command starts.
QUIET = "MLLOAD_QUIET"
QUIET_SECONDS = 1.0
BETWEEN_SECONDS = 0.1


class Ticker:
    """Counts finished steps of one job, from any thread, and tells `progress` about them, late and seldom."""

    def __init__(self, progress: Progress | None, what: str, total: int) -> None:
        self.progress = progress
        self.what = what
        self.total = total
        self.done = 0
        self.nbytes = 0
        self._start = time.monotonic()
        self._next = self._start + QUIET_SECONDS
        self._shown = False
        self._lock = threading.Lock()

    def step(self, nbytes: int) -> None:
        """One more step is done; it brought `nbytes`."""
        with self._lock:
            self.done += 1
            self.nbytes += nbytes
            now = time.monotonic()
            if self.progress is not None and now >= self._next:
                self._next = now + BETWEEN_SECONDS
                self._shown = True
                self.progress(f"{self.what}: {self.done} of {self.total} reads, {self.nbytes / 1e6:.1f} MB")

    def close(self) -> None:
        """Clear the line, if there is one."""
        if self._shown and self.progress is not None:
            self.progress("")


def stderr_progress() -> Progress | None:
    """Rewrites one line of stderr; None where stderr is not a terminal, because a log wants no such lines, and where
    nobody wants to be told (`--quiet`)."""
    if not sys.stderr.isatty() or os.environ.get(QUIET):
        return None

    def show(text: str) -> None:
        sys.stderr.write("\r\x1b[K" + text)
        sys.stderr.flush()

    return show
