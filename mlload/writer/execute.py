"""Copies carried out: several threads, bounded memory, and a record of what is safely on disk.

Jobs run in the order of the source. Every `EPOCH` bytes the outputs are synced, while the threads go on with
the next epoch, and `recorded` is told how many jobs are safe: a run that was killed goes on from there.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.base import Range, Source
from mlload.writer.copies import CHUNK, Job, Write

EPOCH = 512 * 1024 * 1024
IOV_MAX = 1024
THREADS = 4
# Not every system has the lighter of the two.
sync_data: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
# What copy_file_range answers where one of the two file systems does not offer it.
NOT_BETWEEN_THESE = (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM)


@dataclass
class Epoch:
    """Jobs [start, stop); `left` have not ended; `last` is known when all were handed out."""

    stop: int
    nbytes: int = 0
    left: int = 0
    closed: bool = False
    checks: list[tuple[Write, bytes]] = field(default_factory=list)


class Copier:
    """Carries out jobs from one source into files that are open for writing."""

    def __init__(
        self,
        source: Source,
        outputs: Sequence[int],
        *,
        verify: bool = False,
        threads: int = THREADS,
        step: Callable[[int], None] = lambda nbytes: None,
        recorded: Callable[[int], None] = lambda jobs: None,
    ) -> None:
        """outputs: file descriptors, by the index that `Write.file` names
        verify:   read back what was written, past the page cache where the system allows, and compare hashes
        step:     told of bytes read, from any thread
        recorded: told how many jobs are safely on disk
        """
        self.source = source
        self.outputs = outputs
        self.verify = verify
        self.threads = threads
        self.step = step
        self.recorded = recorded
        self._path: Callable[[str], str] | None = None if source.remote else getattr(source, "path", None)
        self._inputs: dict[str, int] = {}
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # A file is written by one thread at a time: two would only spin on its lock in the kernel.
        self._writing = [threading.Lock() for _ in outputs]
        self._epochs: list[Epoch] = []
        self._error: BaseException | None = None
        self._ended = 0
        self._no_system_copy = not hasattr(os, "copy_file_range")

    def run(self, jobs: Iterator[Any], done: int = 0) -> None:
        """Carry out every job after the first `done`. Raises MlloadError, or KeyboardInterrupt after the threads
        have ended."""
        remaining = islice(jobs, done, None)
        self._next, self._number = remaining, done
        workers = [threading.Thread(target=self._work, name=f"copy-{n}", daemon=True) for n in range(self.threads)]
        try:
            for worker in workers:
                worker.start()
            self._settle()
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
            raise
        finally:
            for worker in workers:
                if worker.is_alive():  # an interrupt may have come before all were started
                    worker.join()
            for descriptor in self._inputs.values():
                os.close(descriptor)
            self._inputs.clear()
        if self._error is not None:
            raise self._error

    def _settle(self) -> None:
        """Sync and record epoch by epoch, until all jobs have ended or one has failed."""
        at = 0
        while True:
            with self._changed:
                while not (
                    self._error
                    or (at < len(self._epochs) and self._epochs[at].closed and not self._epochs[at].left)
                    or (self._ended == self.threads and at == len(self._epochs))
                ):
                    self._changed.wait(0.5)
                if self._error or at == len(self._epochs):
                    return
                epoch = self._epochs[at]
            for number in self.outputs:
                sync_data(number)
            for write, digest in epoch.checks:
                self._check(write, digest)
            epoch.checks.clear()
            self.recorded(epoch.stop)
            at += 1

    def _take(self) -> tuple[Job, Epoch] | None:
        with self._changed:
            if self._error is not None:
                return None
            try:
                job = next(self._next)
            except StopIteration:
                job = None
            except BaseException as error:
                self._error = error
                job = None
            if job is None:
                if self._epochs:
                    self._epochs[-1].closed = True
                return None
            if not self._epochs or self._epochs[-1].closed:
                self._epochs.append(Epoch(self._number))
            epoch = self._epochs[-1]
            self._number += 1
            epoch.stop = self._number
            epoch.nbytes += job.length
            epoch.left += 1
            epoch.closed = epoch.nbytes >= EPOCH
            return job, epoch

    def _work(self) -> None:
        buffer = memoryview(bytearray(CHUNK))
        try:
            while True:
                taken = self._take()
                if taken is None:
                    return
                job, epoch = taken
                self.carry_out(job, epoch, buffer)
                self.step(job.length)
                with self._changed:
                    epoch.left -= 1
                    if not epoch.left:
                        self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error = self._error or _told(error)
        finally:
            with self._changed:
                self._ended += 1
                self._changed.notify_all()

    def carry_out(self, job: Any, epoch: Epoch, buffer: memoryview) -> None:
        """One job, in a thread of its own. For those who do more than copy: jobs have a `length`."""
        if self._copied_by_the_system(job):
            return
        piece = self.read(job, buffer)
        for write in job.writes:
            digest = self._write(write, piece)
            if digest:
                with self._lock:
                    epoch.checks.append((write, digest))

    def _copied_by_the_system(self, job: Job) -> bool:
        """Bytes that go to one place each are copied from file to file without passing through this process."""
        if self._path is None or self.verify or self._no_system_copy:
            return False
        if any(len(write.sources) > 1 for write in job.writes) or sum(w.nbytes for w in job.writes) > job.length:
            return False
        descriptor = self._input(job.file)
        for write in job.writes:
            start, place, left = job.offset + write.sources[0], write.places[0], write.length
            with self._writing[write.file]:
                while left:
                    try:
                        count = os.copy_file_range(descriptor, self.outputs[write.file], left, start, place)
                    except OSError as error:
                        if error.errno in NOT_BETWEEN_THESE:
                            self._no_system_copy = True
                            return False
                        raise
                    if not count:
                        raise MlloadError(f"{job.file} ends at {start:,}: it has changed", exit_code=3)
                    start, place, left = start + count, place + count, left - count
        return True

    def read(self, job: Any, buffer: memoryview) -> memoryview:
        """`job.length` bytes of `job.file` from `job.offset` on, in `buffer` where they fit."""
        if self._path is None:
            piece: Any = self.source.read_many([Range(job.file, job.offset, job.length)])[0]
            if isinstance(piece, Exception):
                raise piece
            if len(piece) != job.length:
                raise MlloadError(f"{job.file} ends at {job.offset + len(piece):,}: it has changed", exit_code=3)
            return memoryview(piece)
        descriptor = self._input(job.file)
        if job.length > len(buffer):
            buffer = memoryview(bytearray(job.length))
        got = 0
        while got < job.length:
            count = os.preadv(descriptor, [buffer[got : job.length]], job.offset + got)
            if not count:
                raise MlloadError(f"{job.file} ends at {job.offset + got:,}: it has changed", exit_code=3)
            got += count
        return buffer[: job.length]

    def _input(self, name: str) -> int:
        with self._lock:
            descriptor = self._inputs.get(name)
            if descriptor is None:
                assert self._path is not None
                descriptor = self._inputs[name] = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
            return descriptor

    def _write(self, write: Write, piece: memoryview) -> bytes:
        descriptor, length = self.outputs[write.file], write.length
        with self._writing[write.file]:
            self._put(write, piece, descriptor)
        return _digest(piece[at : at + length] for at in write.sources) if self.verify else b""

    def _put(self, write: Write, piece: memoryview, descriptor: int) -> None:
        length = write.length
        if isinstance(write.places, range) and (len(write.places) == 1 or write.places.step == length):
            views = [piece[at : at + length] for at in write.sources]
            place = write.places[0]
            for start in range(0, len(views), IOV_MAX):
                group = views[start : start + IOV_MAX]
                write_all(descriptor, group, place)
                place += length * len(group)
        else:
            for at, place in zip(write.sources, write.places, strict=True):
                write_all(descriptor, [piece[at : at + length]], place)

    def _check(self, write: Write, digest: bytes) -> None:
        descriptor = self.outputs[write.file]
        first, last = min(write.places), max(write.places) + write.length
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, first, last - first, os.POSIX_FADV_DONTNEED)
        if _digest(os.pread(descriptor, write.length, place) for place in write.places) != digest:
            raise MlloadError(
                f"what was written at byte {write.places[0]:,} of output file {write.file} reads back differently",
                hint="check the disk; nothing was put under the final name",
                exit_code=1,
            )


def _digest(pieces: Iterator[Any]) -> bytes:
    from hashlib import blake2b

    digest = blake2b(digest_size=16)
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


def write_all(descriptor: int, views: list[memoryview], place: int) -> None:
    """All bytes of all views, one after another, from `place` on."""
    total = sum(map(len, views))
    count = os.pwritev(descriptor, views, place)
    while count < total:
        joined = memoryview(b"".join(views))[count:]
        views, place, total = [joined], place + count, len(joined)
        count = os.pwritev(descriptor, views, place)


class DiskFull(MlloadError):
    """What was written stays, to be gone on with."""


def _told(error: BaseException) -> BaseException:
    if isinstance(error, OSError):
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return DiskFull(
                "the disk is full; what was written so far stays beside, and the same command goes on from there",
                exit_code=1,
            )
        return MlloadError(f"cannot copy: {error.strerror or error}", exit_code=3)
    return error
