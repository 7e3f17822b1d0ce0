"""Reads by several threads: not copied at all where a parameter can be a view of its file (`mapped`), else straight
into place where the layout allows, else through a few reused buffers.

Peak memory beside the destinations: BUFFERS pieces of 2 MiB, and two scratch spans a thread.
"""

from __future__ import annotations

import mmap
import os
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.base import Source
from mlload.checkpoint.sources.local import LocalSource, reason
from mlload.checkpoint.streaming import LocalFiles, RemoteFiles, default_threads
from mlload.loader.base import Destinations, RankTensor
from mlload.loader.dtypes import torch_dtype
from mlload.loader.mapped import MappedFile, Mappings, adopt, bring_all, cut_out, read_through
from mlload.loader.reads import PIECE, RUN, Read, in_runs
from mlload.loader.share import ALONE, Share, between

BUFFERS = 16
# Reads that the disk is given at once, by all ranks together: with fewer it idles between them.
DISK_THREADS = 32
LEAST_THREADS = 4
# Between two runs of a row-parallel cut: below it whole rows are read, since a call costs as much as so many bytes.
GAP = 2048
SPAN = 2 << 20  # bytes of whole rows read at once


class Done(NamedTuple):
    """buffer: to give back once the piece was used."""

    read: Read
    piece: Tensor | None
    nbytes: int
    buffer: Tensor | None


def read_tensors(
    source: Source, reads: Sequence[Read], destinations: Destinations, share: Share = ALONE
) -> Iterator[RankTensor]:
    """Carries out all reads, begun in the order given, or in that of the ranks' turns; yields in the order of
    completion. A yielded tensor is valid until the next one is asked for."""
    pinned = torch.cuda.is_available() and any(d.param.device.type == "cuda" for d in destinations.values())
    files = LocalFiles(source) if isinstance(source, LocalSource) else RemoteFiles(source)
    mapped: dict[str, MappedFile] = {}
    apart: dict[Read, MappedFile] = {}
    if isinstance(files, LocalFiles):
        mappings = Mappings(files)
        mapped = adopt(mappings, reads, destinations)
        apart = cut_out(mappings, reads, mapped)
    memory = {read.name: _memory(read, destinations) for read in reads if read.name not in mapped}
    threads = default_threads(source) if source.remote else max(LEAST_THREADS, DISK_THREADS // share.ranks)
    count = max(1, min(threads, len(reads)))
    free: queue.SimpleQueue[Tensor | None] = queue.SimpleQueue()
    for _ in range(BUFFERS):
        free.put(None)
    done: queue.SimpleQueue[Done | BaseException | None] = queue.SimpleQueue()
    runs = list(in_runs(reads, RUN // share.ranks))
    pending = share.in_turns(len(runs), count)
    lock, stop = threading.Lock(), threading.Event()

    def work() -> None:
        try:
            with ExitStack() as opened:
                handles: dict[str, Any] = {}
                while not stop.is_set():
                    with lock:
                        turn = next(pending, None)
                    if turn is None:
                        return
                    run = runs[turn]
                    name = run[0].file
                    if name not in handles:
                        handles[name] = opened.enter_context(files.open(name))
                    places = [(read, mapped.get(read.name) or apart.get(read)) for read in run]
                    if any(place is not None for _, place in places):
                        shared = between(run, share.ranks) if share.ranks > 1 else None
                        if shared is not None and share.reads(turn):
                            read_through(handles[name], *shared)
                        bring_all(places, handles[name], found=shared is not None)
                    for read in run:
                        if stop.is_set():
                            return
                        if read.name in mapped:
                            done.put(Done(read, None, read.nbytes, None))
                        else:
                            holder = apart.get(read, handles[name])
                            done.put(_carry_out(read, memory[read.name], holder, free, stop, pinned))
        except OSError as error:
            done.put(MlloadError(f"cannot be read: {reason(error)}", exit_code=3))
        except BaseException as error:
            done.put(error)
        finally:
            done.put(None)

    workers = [threading.Thread(target=work, daemon=True, name=f"mlload-read-{n}") for n in range(count)]
    for worker in workers:
        worker.start()
    left = count
    try:
        while left:
            item = done.get()
            if item is None:
                left -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield RankTensor(item.read.name, item.read.to, item.piece, item.nbytes)
                if item.buffer is not None:
                    free.put(item.buffer)
    finally:
        stop.set()
        for _ in workers:
            free.put(None)
        for worker in workers:
            worker.join(2.0)  # a read from a dead network mount never returns
    if changed := files.changed():
        raise MlloadError(f"{', '.join(changed)} changed while being loaded", exit_code=3)


def _memory(read: Read, destinations: Destinations) -> Tensor | None:
    destination = destinations.get(read.name)
    return None if destination is None else destination.memory(torch_dtype(read.dtype))


def _carry_out(
    read: Read,
    memory: Tensor | None,
    holder: Any,
    free: queue.SimpleQueue[Tensor | None],
    stop: threading.Event,
    pinned: bool,
) -> Done:
    if memory is not None:
        view = memory.reshape(1) if memory.dim() == 0 else memory
        target = view[tuple(slice(start, end) for start, end in read.to)]
        return Done(read, None, read_box(holder, read, target.view(torch.uint8).numpy()), None)
    buffer = free.get()
    if stop.is_set():
        raise MlloadError("interrupted")
    if buffer is None or buffer.numel() < read.nbytes:
        buffer = new_buffer(max(PIECE, read.nbytes), pinned)
    raw = buffer[: read.nbytes]
    count = read_box(holder, read, raw.numpy().reshape(read.extent))
    extent = tuple(stop - start for start, stop in read.to)
    return Done(read, raw.view(torch_dtype(read.dtype)).view(extent), count, buffer)


def new_buffer(nbytes: int, pinned: bool) -> Tensor:
    """uint8 [nbytes], pinned, or else in huge pages where the system has them."""
    if pinned or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned)
    memory = mmap.mmap(-1, nbytes)
    with suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def read_box(holder: Any, read: Read, into: np.ndarray[Any, np.dtype[np.uint8]]) -> int:
    """The read's bytes, out of an open file or of a mapped one, into `into` (uint8, of the read's extent, its last dim
    contiguous); bytes that were read."""
    if isinstance(holder, MappedFile):
        into[...] = holder.box(read)
        return into.size
    inner, length = len(read.shape), 1
    while inner:
        inner -= 1
        length *= read.extent[inner]
        if read.box[inner] != (0, read.shape[inner]):
            break
    strides = read.strides
    runs = range(read.extent[inner - 1]) if inner else range(1)
    stride = strides[inner - 1] if inner else length
    total = 0
    for outer in product(*(range(size) for size in read.extent[: max(inner - 1, 0)])):
        start = read.first + sum(at * step for at, step in zip(outer, strides, strict=False))
        rows = into[outer] if inner else into[None]
        if len(runs) > 1 and stride - length < GAP:
            total += _whole_rows(holder, start, stride, length, rows, read)
            continue
        if len(runs) > 1:
            _announce(holder, start, stride * (len(runs) - 1) + length)
        for row in runs:
            total += _run(holder, start + row * stride, rows[row], read)
    return total


def _announce(handle: Any, start: int, length: int) -> None:
    """Tells the kernel what comes, so that short runs of a cold file are read ahead together."""
    descriptor = getattr(handle, "_fd", None)
    if descriptor is not None and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_WILLNEED)


def _run(handle: Any, start: int, into: np.ndarray[Any, np.dtype[np.uint8]], read: Read) -> int:
    if into.flags.c_contiguous:
        target = into.reshape(-1)
        _fill(handle, start, target, read)
        return target.size
    target = np.empty(into.shape, dtype=np.uint8)
    _fill(handle, start, target.reshape(-1), read)
    into[...] = target
    return target.size


def _whole_rows(
    handle: Any, start: int, stride: int, length: int, into: np.ndarray[Any, np.dtype[np.uint8]], read: Read
) -> int:
    """Rows with the bytes between their runs, a span at a time."""
    step = max(1, SPAN // stride)
    scratch = np.empty(min(step, len(into)) * stride, dtype=np.uint8)
    total = 0
    for low in range(0, len(into), step):
        rows = into[low : low + step]
        span = scratch[: (len(rows) - 1) * stride + length]
        _fill(handle, start + low * stride, span, read)
        found = np.lib.stride_tricks.as_strided(scratch, (len(rows), length), (stride, 1))
        rows[...] = found.reshape(rows.shape)
        total += span.size
    return total


def _fill(handle: Any, start: int, into: np.ndarray[Any, np.dtype[np.uint8]], read: Read) -> None:
    got = handle.read_into(into.data, start)
    if got < into.size:
        raise MlloadError(
            f"{read.file} ends inside {read.name}: {got:,} of {into.size:,} bytes at {start:,}", exit_code=1
        )
