"""All bytes once, in order within a job, whatever the files do meanwhile."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mlload.checkpoint import streaming
from mlload.checkpoint.sources.local import FolderSource
from mlload.checkpoint.streaming import ALIGNMENT, Job, spans, stream


class Keep:
    """Joins the bytes of each job, and does something on the way."""

    def __init__(self, then: Callable[[Job, int], None] = lambda job, start: None) -> None:
        self.then = then
        self.got: dict[tuple[str, int], bytearray] = {}
        self.problems: dict[str, str] = {}
        self.lock = threading.Lock()

    def begin(self, job: Job) -> None:
        with self.lock:
            self.got[(job.name, job.start)] = bytearray()

    def block(self, job: Job, start: int, data: memoryview) -> None:
        kept = self.got[(job.name, job.start)]
        assert start == job.start + len(kept)
        kept += data
        self.then(job, start)

    def end(self, job: Job, problem: str | None) -> None:
        if problem is not None:
            self.problems[job.name] = problem


def anywhere(start: int, limit: int) -> int:
    return max(start + 1, limit - start % 7)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "LOCAL_BLOCK", 4096)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = random.Random(0)
    for name, size in (("a", 100_001), ("b", 0), ("c", 5), ("d", 33_333)):
        (tmp_path / name).write_bytes(generator.randbytes(size))
    return tmp_path


def jobs(folder: Path, span: int = 10_000) -> list[Job]:
    return [
        Job(path.name, start, stop, anywhere, phase=3)
        for path in sorted(folder.iterdir())
        for start, stop in spans(0, path.stat().st_size, span, anywhere)
    ]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("threads", [1, 2, 7])
def test_every_byte_once(folder: Path, threads: int) -> None:
    keep = Keep()
    done = stream(FolderSource(str(folder), "x"), jobs(folder), lambda: keep, threads=threads)
    for path in folder.iterdir():
        mine = sorted(start for name, start in keep.got if name == path.name)
        assert b"".join(keep.got[(path.name, start)] for start in mine) == path.read_bytes()
    assert done.nbytes == sum(path.stat().st_size for path in folder.iterdir())
    assert done.changed == () and keep.problems == {}


@pytest.mark.usefixtures("small_blocks")
def test_blocks_lie_aligned_to_their_phase(folder: Path) -> None:
    ctypes = pytest.importorskip("ctypes")

    class Address(Keep):
        def block(self, job: Job, start: int, data: memoryview) -> None:
            address = ctypes.addressof(ctypes.c_char.from_buffer(data))
            assert (address - (start - job.phase)) % ALIGNMENT == 0
            super().block(job, start, data)

    stream(FolderSource(str(folder), "x"), jobs(folder), Address)


@pytest.mark.usefixtures("small_blocks")
def test_a_file_that_is_shorter_than_it_was(folder: Path) -> None:
    made = jobs(folder, 1 << 30)
    os.truncate(folder / "a", 50_000)
    keep = Keep()
    stream(FolderSource(str(folder), "x"), made, lambda: keep)
    assert keep.problems == {"a": "ends after 50,000 bytes, 100,001 were expected"}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("how", ["grown", "rewritten", "replaced", "removed"])
def test_a_file_that_changes_meanwhile(folder: Path, how: str) -> None:
    path = folder / "d"

    def change(job: Job, start: int) -> None:
        if job.name == "d" and start == 0:
            if how == "grown":
                with path.open("ab") as handle:
                    handle.write(b"x")
            elif how == "rewritten":
                with path.open("r+b") as handle:
                    handle.write(b"x")
                os.utime(path, ns=(1, 1))
            elif how == "replaced":
                (folder / "e").write_bytes(path.read_bytes())
                (folder / "e").rename(path)
            else:
                path.unlink()

    done = stream(FolderSource(str(folder), "x"), jobs(folder, 1 << 30), lambda: Keep(change))
    assert done.changed == ("d",)


def test_a_file_that_cannot_be_opened(folder: Path) -> None:
    keep = Keep()
    made = [Job("missing", 0, 10, anywhere), *jobs(folder)]
    stream(FolderSource(str(folder), "x"), made, lambda: keep)
    assert keep.problems == {"missing": "cannot be read: No such file or directory"}
    assert len(keep.got[("c", 0)]) == 5


def test_what_a_consumer_raises_comes_out(folder: Path) -> None:
    def fail(job: Job, start: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stream(FolderSource(str(folder), "x"), jobs(folder), lambda: Keep(fail))


@pytest.mark.usefixtures("small_blocks")
def test_an_interrupt_stops_all_threads(folder: Path) -> None:
    def slow(job: Job, start: int) -> None:
        time.sleep(0.02)

    def tick(nbytes: int, seconds: float) -> None:
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        stream(FolderSource(str(folder), "x"), jobs(folder, 1 << 30) * 20, lambda: Keep(slow), tick=tick)
    assert time.monotonic() - started < 5
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mlload-stream")]


def test_reading_ahead_asks_for_the_first_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []
    done = threading.Event()

    def advise(descriptor: int, start: int, length: int, advice: int) -> None:
        asked.append((start, length, advice))
        if len(asked) == 2:
            done.set()

    monkeypatch.setattr(os, "posix_fadvise", advise)
    streaming.read_ahead(FolderSource(str(folder), "x"), ["a", "d", "c"], 110_000)
    assert done.wait(60)
    assert asked == [(0, 100_001, os.POSIX_FADV_WILLNEED), (0, 9_999, os.POSIX_FADV_WILLNEED)]


def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    keep = Keep()
    stream(FolderSource(str(folder), "x"), [Job("pipe", 0, 10, anywhere)], lambda: keep)
    assert keep.problems == {"pipe": "cannot be read: not a regular file"}
