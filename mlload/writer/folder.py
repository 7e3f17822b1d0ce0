"""An output folder that appears under its name only when it is complete.

Everything is written into `NAME.partial` beside it, synced, and renamed. A run that was interrupted leaves that
folder with a record (`mlload-progress.json`), and the same command goes on from there; another command starts anew.

The folder that gets the name is exactly the output. So that a run can also be stopped while it tidies up and renames, a
file beside it (`NAME.partial.complete`) first says that everything is written; it is the last to go.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from mlload.checkpoint.finding import MlloadError

RECORD = "mlload-progress.json"
COMPLETE = ".partial.complete"  # behind the output's name
RESERVE = 16 * 1024 * 1024  # left free beside what is written, for names and journals of the file system


class OutputFolder:
    """`with OutputFolder(path, request, size) as folder:` then `folder.open`, `folder.record`, `folder.finish()`.

    Without `finish` the partial folder stays, as it does when the process is killed. Where `complete` is true once it
    is entered, an earlier run wrote everything and was stopped in its `finish`: nothing but that is left to do.
    """

    def __init__(self, path: str, request: str, size: int) -> None:
        """request: digest of what is asked for and of its source; size: bytes that will be written"""
        self.path = os.path.abspath(os.path.expanduser(path))
        self.partial = self.path + ".partial"
        self.request = request
        self.size = size
        self.done = 0
        self.resumed = False
        self.complete = False
        self._lock = -1
        self._locked = False

    def __enter__(self) -> OutputFolder:
        refuse_existing(self.path)
        fresh = not os.path.lexists(self.partial)
        try:
            self._make()
            self._take_lock()
            self._find_out()
        except BaseException:
            try:
                if fresh:
                    self._leave_nothing()
            finally:
                if self._lock >= 0:
                    os.close(self._lock)
            raise
        return self

    def _make(self) -> None:
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            os.makedirs(self.partial, exist_ok=True)
        except OSError as error:
            raise MlloadError(f"{self.path} cannot be made: {error.strerror}", exit_code=3) from error

    def _leave_nothing(self) -> None:
        """Away with a folder in which nothing was begun. What is not of this run, or is another run's, stays."""
        with contextlib.suppress(OSError):
            if self._locked:
                _unlink(os.path.join(self.partial, RECORD + ".new"))
                _unlink(os.path.join(self.partial, RECORD))
            os.rmdir(self.partial)

    def _find_out(self) -> None:
        """How far an earlier run came, if the folder is the rest of one for the same request; else it is emptied."""
        ended = _read(self.path + COMPLETE)
        written = not set(os.listdir(self.partial)) <= {RECORD, RECORD + ".new"}
        if ended is not None and written and ended.get("request") == self.request:
            self.complete = self.resumed = True
            self.done = int(ended["done"])
            return
        record = self._read_record(known=ended is not None)
        if record.get("request") == self.request and isinstance(record.get("done"), int) and record["done"]:
            self.done, self.resumed = record["done"], True
        else:
            # In this order: stopped at any point the folder is known as this run's, with nothing done.
            self.record(0)
            _unlink(self.path + COMPLETE)
            self._empty()
        self._check_space()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._lock >= 0:
            os.close(self._lock)

    def create(self, name: str, size: int, header: bytes) -> int:
        """A file of `size` bytes that begins with `header`, open for reading and writing."""
        path = self._below(name)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if os.fstat(descriptor).st_size != size:
                os.ftruncate(descriptor, size)
            os.pwrite(descriptor, header, 0)
        except OSError as error:
            os.close(descriptor)
            raise MlloadError(f"{name} cannot be written: {error.strerror}", exit_code=1) from error
        return descriptor

    def write(self, name: str, content: Iterable[bytes]) -> None:
        """A whole small file, in pieces."""
        with open(self._below(name), "wb") as handle:
            for piece in content:
                handle.write(piece)
            handle.flush()
            os.fsync(handle.fileno())

    def record(self, done: int) -> None:
        """That the first `done` jobs are safely on disk."""
        _note(os.path.join(self.partial, RECORD), self.request, done)
        self.done = done

    def finish(self, temporary: Sequence[str] = ()) -> None:
        """Everything is there: sync, and give the folder its name. temporary: files in it that are not of the output"""
        for folder, _, _ in os.walk(self.partial):
            sync_folder(folder)
        _note(self.path + COMPLETE, self.request, self.done)
        sync_folder(os.path.dirname(self.path))
        for name in (*temporary, RECORD + ".new", RECORD):
            _unlink(os.path.join(self.partial, name))
        try:
            os.rename(self.partial, self.path)
        except OSError as error:
            raise MlloadError(
                f"{self.path} appeared while its content was written; that lies in {self.partial}", exit_code=1
            ) from error
        sync_folder(os.path.dirname(self.path))
        _unlink(self.path + COMPLETE)

    def _below(self, name: str) -> str:
        path = os.path.join(self.partial, *name.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def _take_lock(self) -> None:
        import fcntl

        self._lock = os.open(self.partial, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise MlloadError(f"another run is writing {self.partial} right now", exit_code=1) from None
        self._locked = True

    def _read_record(self, *, known: bool) -> dict[str, Any]:
        """known: whether the folder is ours, whatever is in it."""
        value = _read(os.path.join(self.partial, RECORD))
        if value is None and not known and not set(os.listdir(self.partial)) <= {RECORD, RECORD + ".new"}:
            raise MlloadError(
                f"{self.partial} exists and is not the rest of an interrupted run; it is left as it is",
                hint="move it away, or choose another -o",
            )
        return value or {}

    def _empty(self) -> None:
        """But for the record."""
        for name in os.listdir(self.partial):
            if name == RECORD:
                continue
            path = os.path.join(self.partial, name)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)

    def _check_space(self) -> None:
        there = sum(
            os.lstat(os.path.join(folder, name)).st_blocks * 512
            for folder, _, names in os.walk(self.partial)
            for name in names
        )
        state = os.statvfs(self.partial)
        free = state.f_bavail * state.f_frsize
        left = max(0, self.size - there)
        if left + RESERVE > free:
            raise MlloadError(
                f"{left:,} bytes are to be written, {RESERVE:,} stay free beside them, and "
                f"{os.path.dirname(self.path)} has {free:,} ({left + RESERVE - free:,} too few)",
                hint="choose another -o, or make room",
                exit_code=1,
            )


def request_of_rest(path: str) -> str | None:
    """Of an interrupted run that was writing `path`: what was asked for; None where there is no such run's rest."""
    path = os.path.abspath(path)
    for place in (path + COMPLETE, os.path.join(path + ".partial", RECORD)):
        found = _read(place)
        if found is not None and os.path.isdir(path + ".partial"):
            return str(found.get("request"))
    return None


def forget_rest(path: str) -> None:
    """What `request_of_rest` spoke of is gone on with by nobody; who writes there next begins with an empty folder."""
    path = os.path.abspath(path)
    _note(os.path.join(path + ".partial", RECORD), "", 0)
    _unlink(path + COMPLETE)


def refuse_existing(path: str) -> None:
    """An output never replaces what is there; an empty folder is no content."""
    if os.path.islink(path) or os.path.lexists(path):
        if os.path.isdir(path) and not os.path.islink(path) and not os.listdir(path):
            return
        if not os.path.lexists(path + ".partial"):
            _unlink(path + COMPLETE)  # of a run that was stopped at its very last step
        raise MlloadError(f"{path} exists; nothing is ever overwritten", hint="choose another -o, or remove it first")


def refuse_inside(path: str, source: object) -> None:
    """An output below the folder that it is made from would be taken for a part of that checkpoint from then on."""
    root = getattr(source, "root", None)
    if root is None or getattr(source, "kind", "") != "folder" or "://" in path:
        return
    root = os.path.realpath(root)
    if os.path.realpath(os.path.expanduser(path)).startswith(root.rstrip("/") + "/"):
        raise MlloadError(
            f"{path} lies inside the source {root}, and would be read as a part of it from then on",
            hint="an -o beside it, or elsewhere",
        )


def _read(path: str) -> dict[str, Any] | None:
    """A record; None where there is none that can be read."""
    try:
        with open(path, encoding="ascii") as handle:
            value = json.load(handle)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else {}


def _note(path: str, request: str, done: int) -> None:
    """In one step: the file is either as it was or says this."""
    with open(path + ".new", "w", encoding="ascii") as handle:
        handle.write(json.dumps({"request": request, "done": done}))
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(path + ".new", path)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
