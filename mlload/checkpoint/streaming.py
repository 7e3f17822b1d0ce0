"""Every byte of many files, once, through a few reused buffers and several threads.

A `Job` is a run of one file. Its bytes come block by block, in order, to one `Consumer`; different jobs run side
by side. Blocks of 2 MiB in huge pages are what reads fastest out of the page cache (a quarter of a megabyte runs at
a third of that: every call hands the interpreter's lock over); more threads than cores hide a cold disk's latency.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.base import Source
from mlload.checkpoint.sources.local import LocalSource, open_regular, reason

LOCAL_BLOCK = 2 << 20
REMOTE_BLOCK = 8 << 20
ALIGNMENT = 64  # bytes; a block may begin this far into its buffer, so that its tensors lie aligned in memory
REMOTE_THREADS = 8
READ_AHEAD = 1 << 30  # bytes: what a fast disk brings while the rest of the command starts
TICK_SECONDS = 0.2


class Job(NamedTuple):
    """Bytes [start, stop) of the file `name`.

    ends:  where the block that begins at an offset ends at best, given that it may not pass a limit
    phase: an offset whose place in memory is to be a multiple of ALIGNMENT (the first tensor's)
    tag:   the caller's own
    """

    name: str
    start: int
    stop: int
    ends: Callable[[int, int], int]
    phase: int = 0
    tag: object = None


class Consumer(Protocol):
    """What one thread does with the jobs that fall to it; the block's memory is reused after `block` returns."""

    def begin(self, job: Job) -> None: ...

    def block(self, job: Job, start: int, data: memoryview) -> None: ...

    def end(self, job: Job, problem: str | None) -> None:
        """All of the job was read, or `problem` tells why not."""
        ...


class Meter:
    """Bytes read so far, from any thread."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._lock = threading.Lock()

    def add(self, nbytes: int) -> None:
        with self._lock:
            self.nbytes += nbytes


class Streamed(NamedTuple):
    """nbytes: read; seconds: wall time; threads: how many read; changed: files that were not the same at the end as
    at the beginning."""

    nbytes: int
    seconds: float
    threads: int
    changed: tuple[str, ...]


def default_threads(source: Source) -> int:
    """At least four: on two cores that is no slower from memory, and a disk wants several requests at a time."""
    return REMOTE_THREADS if source.remote else min(16, max(4, len(os.sched_getaffinity(0))))


def block_size(source: Source) -> int:
    return REMOTE_BLOCK if source.remote else LOCAL_BLOCK


def stream(
    source: Source,
    jobs: Sequence[Job],
    consumer: Callable[[], Consumer],
    *,
    threads: int | None = None,
    tick: Callable[[int, float], None] | None = None,
) -> Streamed:
    """Run all jobs, in the order given, and return when the last has ended.

    consumer: makes one per thread
    tick:     told bytes and seconds so far, a few times a second
    Memory: one block per thread (twice that for remote sources). An interrupt stops all threads at their next block.
    """
    count = max(1, min(threads or default_threads(source), len(jobs)))
    files = LocalFiles(source) if isinstance(source, LocalSource) else RemoteFiles(source)
    meter, stop, failures = Meter(), threading.Event(), list[BaseException]()
    queue, lock = iter(jobs), threading.Lock()

    def work() -> None:
        try:
            room = Room(block_size(source))
            mine = consumer()
            while not stop.is_set():
                with lock:
                    job = next(queue, None)
                if job is None:
                    return
                mine.begin(job)
                mine.end(job, read_job(files, job, room, mine, meter, stop))
        except BaseException as error:  # a thread has nobody to raise to
            failures.append(error)
            stop.set()

    started = time.perf_counter()
    workers = [threading.Thread(target=work, name=f"mlload-stream-{n}", daemon=True) for n in range(count)]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            while worker.is_alive():
                worker.join(TICK_SECONDS)
                if tick is not None:
                    tick(meter.nbytes, time.perf_counter() - started)
    except BaseException:
        stop.set()
        for worker in workers:
            if worker.is_alive():
                worker.join(2.0)  # a read from a dead network mount never returns
        raise
    finally:
        seconds = time.perf_counter() - started
    if failures:
        raise failures[0]
    return Streamed(meter.nbytes, seconds, count, files.changed())


class Room:
    """One thread's memory: a block, and what lets it begin at any phase."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._map = mmap.mmap(-1, size * 2)  # twice, so that the block is backed by whole huge pages
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._view = memoryview(self._map)

    def at(self, phase: int, length: int) -> memoryview:
        return self._view[phase : phase + length]


def read_job(
    files: LocalFiles | RemoteFiles, job: Job, room: Room, consumer: Consumer, meter: Meter, stop: threading.Event
) -> str | None:
    """All blocks of a job into its consumer; why not, where it ended early."""
    position = job.start
    try:
        with files.open(job.name) as handle:
            while position < job.stop:
                if stop.is_set():
                    return "interrupted"
                limit = min(job.stop, position + room.size)
                end = limit if limit == job.stop else job.ends(position, limit)
                into = room.at((position - job.phase) % ALIGNMENT, end - position)
                got = handle.read_into(into, position)
                if got < end - position:
                    return f"ends after {position + got:,} bytes, {job.stop:,} were expected"
                consumer.block(job, position, into)
                meter.add(got)
                position = end
    except MlloadError as error:
        return error.message
    except OSError as error:
        return f"cannot be read: {reason(error)}"
    return None


class LocalFile:
    def __init__(self, files: LocalFiles, name: str) -> None:
        self._files, self._name = files, name

    def __enter__(self) -> LocalFile:
        self._fd = open_regular(self._files.source.path(self._name), os.O_RDONLY | os.O_CLOEXEC)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        self._files.seen(self._name, os.fstat(self._fd))
        return self

    def fileno(self) -> int:
        return self._fd

    def read_into(self, into: memoryview, position: int) -> int:
        got = 0
        while got < len(into):
            count = os.preadv(self._fd, [into[got:]], position + got)
            if count == 0:
                break
            got += count
        return got

    def __exit__(self, *_: object) -> None:
        try:
            self._files.seen(self._name, os.fstat(self._fd))
        finally:
            os.close(self._fd)


class LocalFiles:
    """Opens files, and remembers what each looked like, to notice one that changes meanwhile."""

    def __init__(self, source: LocalSource) -> None:
        self.source = source
        self._identity: dict[str, tuple[int, int, int, int]] = {}
        self._changed: set[str] = set()

    def open(self, name: str) -> LocalFile:
        return LocalFile(self, name)

    def seen(self, name: str, status: os.stat_result) -> None:
        identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if self._identity.setdefault(name, identity) != identity:
            self._changed.add(name)

    def changed(self) -> tuple[str, ...]:
        for name in self._identity:  # one that was replaced by a rename shows only under its name
            try:
                self.seen(name, os.stat(self.source.path(name)))
            except OSError:
                self._changed.add(name)
        return tuple(sorted(self._changed))


class RemoteFile:
    def __init__(self, source: Source, name: str) -> None:
        self._source, self._name = source, name

    def __enter__(self) -> RemoteFile:
        return self

    def read_into(self, into: memoryview, position: int) -> int:
        data = self._source.read(self._name, position, len(into))
        into[: len(data)] = data
        return len(data)

    def __exit__(self, *_: object) -> None:
        return None


class RemoteFiles:
    """Ranged reads; a Hub repository is pinned to a commit, so that nothing can change."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def open(self, name: str) -> RemoteFile:
        return RemoteFile(self.source, name)

    def changed(self) -> tuple[str, ...]:
        return ()


def read_ahead(source: Source, names: Sequence[str], nbytes: int = READ_AHEAD) -> None:
    """Have a local disk fetch the first bytes of the files that come first, while the caller still prepares."""
    if not isinstance(source, LocalSource) or not hasattr(os, "posix_fadvise"):
        return

    def fetch() -> None:
        left = nbytes
        for name in names:
            try:
                descriptor = open_regular(source.path(name), os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return  # the pass itself will say so
            try:
                size = min(left, os.fstat(descriptor).st_size)
                os.posix_fadvise(descriptor, 0, size, os.POSIX_FADV_WILLNEED)
            except OSError:
                return  # a file system without it
            finally:
                os.close(descriptor)
            left -= size
            if left <= 0:
                return

    threading.Thread(target=fetch, name="mlload-read-ahead", daemon=True).start()


def spans(start: int, stop: int, length: int, ends: Callable[[int, int], int]) -> Iterator[tuple[int, int]]:
    """[start, stop) in runs of about `length` bytes that end where a block may end."""
    while start < stop:
        limit = min(stop, start + length)
        end = limit if limit == stop else ends(start, limit)
        yield start, end
        start = end
