"""The progress line: on a terminal only, rewritten in place, cleared at the end."""

from __future__ import annotations

import io

import pytest

from mlload.checkpoint.sources.progress import Ticker, stderr_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert stderr_progress() is None


def test_a_terminal_gets_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    times = iter([100.0, 100.5, 101.2, 101.25, 101.4])
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    ticker = Ticker(stderr_progress(), "org/name", 4)
    for _ in range(4):
        ticker.step(1_500_000)
    ticker.close()
    # Nothing in the first second, nothing again within a tenth.
    assert terminal.getvalue() == (
        "\r\x1b[Korg/name: 2 of 4 reads, 3.0 MB\r\x1b[Korg/name: 4 of 4 reads, 6.0 MB\r\x1b[K"
    )


def test_without_a_listener_it_only_counts() -> None:
    ticker = Ticker(None, "x", 1)
    ticker.step(5)
    ticker.close()
    assert (ticker.done, ticker.nbytes) == (1, 5)
