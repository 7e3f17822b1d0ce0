"""Checkpoints on a disk: a folder (the Hub cache's snapshots of symlinks included) or one file."""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Sequence

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.base import Range, SourceFile

MAX_DEPTH = 8  # folders below the root; deeper ones hold no checkpoint that an engine would read
MAX_FILES = 200_000
# What belongs to a weight file that is asked about alone, beside the JSON files: its tokenizer and chat template.
BESIDE = frozenset({"chat_template.jinja", "tokenizer.model", "vocab.txt", "merges.txt"})
SKIPPED_FOLDERS = frozenset({".git", ".cache", "__pycache__", ".ipynb_checkpoints"})


class LocalSource(ABC):
    """What a folder and a single file have in common: names below a root, and reads of byte ranges."""

    kind = "folder"
    remote = False
    revision: str | None = None

    def __init__(self, root: str, label: str) -> None:
        self.root = root
        self.label = label

    def path(self, name: str) -> str:
        """Where a file lies. For callers that map a file into memory."""
        return os.path.join(self.root, name)

    @abstractmethod
    def files(self) -> Sequence[SourceFile]:
        """All files, sorted by name, without reading any."""

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        try:
            with open(self.path(name), "rb", buffering=0, opener=open_regular) as handle:
                size = os.fstat(handle.fileno()).st_size
                stop = size if length is None else min(size, start + length)
                wanted = max(0, stop - start)
                if start:
                    handle.seek(start)
                pieces: list[bytes] = []
                while wanted > 0:
                    piece = handle.read(wanted)
                    if not piece:
                        break
                    pieces.append(piece)
                    wanted -= len(piece)
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        except (OSError, OverflowError, ValueError) as error:
            raise MlloadError(f"{name}: cannot be read: {reason(error)}", exit_code=3) from error

    def read_many(self, ranges: Sequence[Range]) -> list[bytes | Exception]:
        results: list[bytes | Exception] = []
        for name, start, length in ranges:
            try:
                results.append(self.read(name, start, length))
            except MlloadError as error:
                results.append(error)
        return results


class FolderSource(LocalSource):
    """A folder and what lies below it. A folder reached twice (a cycle of symlinks) is listed once."""

    def files(self) -> Sequence[SourceFile]:
        found: list[SourceFile] = []
        seen: set[tuple[int, int]] = set()
        self._walk(self.root, "", 0, seen, found)
        found.sort()
        return found

    def _walk(self, path: str, prefix: str, depth: int, seen: set[tuple[int, int]], found: list[SourceFile]) -> None:
        try:
            here = os.stat(path)
            identity = (here.st_dev, here.st_ino)
            if identity in seen or depth > MAX_DEPTH:
                return
            seen.add(identity)
            with os.scandir(path) as entries:
                listed = list(entries)
        except OSError as error:
            if not prefix:
                raise MlloadError(f"{self.label}: cannot be read: {reason(error)}", exit_code=3) from error
            found.append(SourceFile(prefix.rstrip("/"), 0, None, f"cannot be read: {reason(error)}"))
            return
        for entry in listed:
            if len(found) >= MAX_FILES:
                # A home folder, perhaps. Half a listing would call the rest missing.
                raise MlloadError(
                    f"{self.label}: more than {MAX_FILES:,} files lie in it, and no checkpoint has that many",
                    hint="name the folder of the checkpoint itself",
                    exit_code=3,
                )
            name = prefix + entry.name
            try:
                is_folder = entry.is_dir()
            except OSError:
                is_folder = False
            if is_folder:
                if entry.name not in SKIPPED_FOLDERS:
                    self._walk(entry.path, name + "/", depth + 1, seen, found)
            else:
                found.append(describe(entry.path, name, entry.is_symlink()))


class FileSource(LocalSource):
    """One weight file, with the small files beside it and, for a split GGUF, its other parts."""

    kind = "file"

    def __init__(self, path: str, label: str) -> None:
        super().__init__(os.path.dirname(path) or ".", label)
        self.name = os.path.basename(path)

    def files(self) -> Sequence[SourceFile]:
        names = {self.name}
        stem, _, count = self.name.removesuffix(".gguf").rpartition("-of-")
        split = stem.rpartition("-")[0] if self.name.endswith(".gguf") and count.isdigit() else None
        try:
            beside = os.listdir(self.root)
        except OSError:
            beside = []
        for other in beside:
            if split is not None:
                if other.startswith(split + "-") and other.endswith(f"-of-{count}.gguf"):
                    names.add(other)
            elif other in BESIDE or (other.endswith(".json") and not other.endswith(".index.json")):
                names.add(other)
        return [describe(self.path(name), name, os.path.islink(self.path(name))) for name in sorted(names)]


def describe(path: str, name: str, is_symlink: bool) -> SourceFile:
    """One file's size, and why it cannot be read where it cannot.

    The Hub's cache names blobs by their sha256 and links to them: such a link tells the digest.
    """
    digest: str | None = None
    target = ""
    if is_symlink:
        try:
            target = os.readlink(path)
        except OSError as error:  # gone since it was listed
            return SourceFile(name, 0, digest, f"cannot be read: {reason(error)}")
        blob = os.path.basename(target)
        if len(blob) == 64 and os.path.basename(os.path.dirname(target)) == "blobs" and is_hex(blob):
            digest = blob
    try:
        status = os.stat(path)
    except OSError as error:
        if is_symlink and error.errno == 2:
            return SourceFile(name, 0, digest, f"dangling link to {target}")
        return SourceFile(name, 0, digest, f"cannot be read: {reason(error)}")
    if not stat.S_ISREG(status.st_mode):
        return SourceFile(name, 0, digest, "not a regular file")
    return SourceFile(name, status.st_size, digest, None)


def open_regular(path: str, flags: int) -> int:
    """An `opener` for files of a checkpoint: a pipe would wait for its writer, a device need never end."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("not a regular file")
    return descriptor


def is_hex(text: str) -> bool:
    return all(c in "0123456789abcdef" for c in text)


def reason(error: Exception) -> str:
    """An operating system's error in its own words, without path and number."""
    return str(getattr(error, "strerror", None) or error)


def snapshot_of_cache(path: str) -> tuple[str, str] | None:
    """(snapshot folder, commit) when `path` is a repository folder of the Hub's cache, which holds
    `refs/` and `snapshots/` rather than the files themselves; else None."""
    snapshots = os.path.join(path, "snapshots")
    if not os.path.isdir(snapshots):
        return None
    try:
        with open(os.path.join(path, "refs", "main"), encoding="ascii") as handle:
            commit = handle.read(200).strip()
    except (OSError, UnicodeDecodeError):
        try:
            commits = sorted(os.listdir(snapshots))
        except OSError:
            return None
        if len(commits) != 1:
            return None
        commit = commits[0]
    folder = os.path.join(snapshots, os.path.basename(commit))
    return (folder, commit) if os.path.isdir(folder) else None


def open_local(text: str) -> LocalSource | None:
    """The source for a path that exists, else None. "~" is understood."""
    path = os.path.expanduser(text)
    if os.path.isdir(path):
        cached = snapshot_of_cache(path)
        source = FolderSource(cached[0] if cached else path, text)
        if cached:
            source.revision = cached[1]
        return source
    if os.path.lexists(path):
        return FileSource(path, text)
    return None
