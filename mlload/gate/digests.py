"""sha256 of every file of a checkpoint: the Hub's own for what it stores apart, else of the bytes, streamed.

Of files on this machine always the bytes are hashed: a name in the Hub's cache tells what was asked for, not what lies
there now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mlload.checkpoint.checkpoint import Checkpoint, FileRef

# Bytes read at a time; what a file holds beyond that is never in memory at once.
CHUNK = 8 << 20


class Digest(NamedTuple):
    """One file: size in bytes, sha256 in hex."""

    name: str
    size: int
    sha256: str


def digests(checkpoint: Checkpoint, progress: Callable[[str], None] | None = None) -> tuple[Digest, ...]:
    """All files, by name. Two at a time: hashing and reading leave the interpreter free."""
    from concurrent.futures import ThreadPoolExecutor

    believed = checkpoint.source.remote
    total = sum(file.size for file in checkpoint.files if not (believed and file.digest))
    done, stopped = [0], [False]

    def one(file: FileRef) -> Digest:
        if believed and file.digest:
            return Digest(file.name, file.size, file.digest)
        state = hashlib.sha256()
        for piece in pieces(checkpoint, file):
            if stopped[0]:
                break
            state.update(piece)
            done[0] += len(piece)
            if progress is not None:
                progress(f"sha256: {done[0] / 1e9:.1f} of {total / 1e9:.1f} GB")
        return Digest(file.name, file.size, state.hexdigest())

    pool = ThreadPoolExecutor(2)
    try:
        found = tuple(sorted(pool.map(one, checkpoint.files)))
    except BaseException:  # also Ctrl-C: no thread reads on to the end of its file
        stopped[0] = True
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    if progress is not None:
        progress("")
    return found


def pieces(checkpoint: Checkpoint, file: FileRef) -> Iterator[bytes]:
    """The bytes of a file in order, at most CHUNK at a time."""
    start = 0
    while start < file.size:
        piece = checkpoint.source.read(file.name, start, min(CHUNK, file.size - start))
        if not piece:
            return
        yield piece
        start += len(piece)
