"""A layout written to a bucket (`s3://...`), a few files at once, each in multipart uploads.

A file of a bucket appears whole or not at all. config.json goes last, so that what is not complete does not look
like a checkpoint; a mark with the request lies there until then, and the same command goes on with the files that
are missing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

from mlload.checkpoint.checkpoint import Checkpoint, FileRef
from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.url import bucket
from mlload.writer.carry import content
from mlload.writer.holdings import Holdings
from mlload.writer.layout import Layout
from mlload.writer.progress import Bar
from mlload.writer.stream import contents

MARK = "mlload-progress.json"
PART = 16 * 1024 * 1024
PIECE = 8 * 1024 * 1024
THREADS = 4


def write_bucket(
    url: str,
    layout: Layout,
    holdings: Holdings,
    request: str,
    *,
    carry_from: Checkpoint,
    carry: Sequence[FileRef] = (),
    verify: bool = False,
    progress: Callable[[str], None] | None = None,
) -> bool:
    """Upload everything. True when it went on from an interrupted run."""
    fs, root = bucket(url)
    root = root.rstrip("/")
    there = _sizes(fs, root, url)
    resumed = bool(there)
    if there and _mark(fs, root, there) != request:
        raise MlloadError(f"{url} is not empty; nothing is ever overwritten", hint="choose another -o")
    upload = _Upload(fs, root, url, verify)
    if not there:
        upload.put(MARK, [json.dumps({"request": request}).encode()])
    bar = Bar(progress, url, sum(file.size for file in layout.files))
    try:
        missing = []
        for file, pieces in contents(layout, holdings):
            if there.get(file.name) == file.size:
                bar.step(file.size)
            else:
                missing.append((file.name, pieces))
        _at_once(upload, missing, bar.step)
    finally:
        bar.close()
    for name, text in layout.texts.items():
        upload.put(name, [text])
    for ref in sorted(carry, key=lambda ref: ref.name == "config.json"):
        upload.put(ref.name, content(carry_from, ref))
    fs.rm(f"{root}/{MARK}")
    return resumed


def _at_once(upload: _Upload, files: Sequence[tuple[str, Iterator[bytes]]], step: Callable[[int], None]) -> None:
    """Several files side by side, each in its own order. When one fails, nothing of those under way appears."""
    from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

    stopped = threading.Event()

    def until(pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            if stopped.is_set():
                raise MlloadError("stopped")
            yield piece

    with ThreadPoolExecutor(THREADS, thread_name_prefix="upload") as pool:
        futures = [pool.submit(upload.put, name, until(pieces), step) for name, pieces in files]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:
            stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _sizes(fs: Any, root: str, url: str) -> dict[str, int]:
    try:
        fs.invalidate_cache()
        found = fs.find(root, detail=True)
    except FileNotFoundError:
        return {}
    except Exception as error:
        raise _failed(url, error) from error
    return {path[len(root) + 1 :]: int(info.get("size") or 0) for path, info in found.items()}


def _mark(fs: Any, root: str, there: dict[str, int]) -> str | None:
    if MARK not in there:
        return None
    try:
        value = json.loads(fs.cat_file(f"{root}/{MARK}"))
    except ValueError:
        return None
    request = value.get("request") if isinstance(value, dict) else None
    return request if isinstance(request, str) else None


class _Upload:
    def __init__(self, fs: Any, root: str, url: str, verify: bool) -> None:
        self.fs = fs
        self.root = root
        self.url = url
        self.verify = verify

    def put(self, name: str, pieces: Iterable[bytes], step: Callable[[int], None] = lambda nbytes: None) -> None:
        """One object. When it fails nothing of it appears."""
        path = f"{self.root}/{name}"
        digest = blake2b(digest_size=16)
        size = 0
        handle = None
        try:
            handle = self.fs.open(path, "wb", block_size=PART)
            for piece in pieces:
                handle.write(piece)
                size += len(piece)
                step(len(piece))
                if self.verify:
                    digest.update(piece)
            handle.close()
        except BaseException as error:
            if handle is not None:
                handle.closed = True
                if hasattr(handle, "discard"):
                    handle.discard()
            if isinstance(error, MlloadError) or not isinstance(error, Exception):
                raise
            raise _failed(f"{self.url}/{name}", error) from error
        if self.verify:
            again = blake2b(digest_size=16)
            for start in range(0, size, PIECE):
                again.update(self.fs.cat_file(path, start=start, end=min(size, start + PIECE)))
            if again.digest() != digest.digest():
                raise MlloadError(f"{self.url}/{name} reads back differently", exit_code=1)


def _failed(url: str, error: Exception) -> MlloadError:
    said = " ".join(str(error).split()) or type(error).__name__
    return MlloadError(f"cannot write {url} ({said})", hint="check the bucket and the credentials", exit_code=3)
