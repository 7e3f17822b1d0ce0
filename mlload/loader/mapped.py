"""Tensors of a CPU's parameters as views of the mapped files, where nothing has to be cut, cast or copied.

Filling fresh memory costs more than reading a cached file: every page is faulted in, cleared and written. A mapped
page is only looked up. What is not cached yet is read first, in file order and by several threads, as any other bytes
are: plain reads fill the cache with large pages, which page faults do not. So no fault is left for the first token.
Mappings are private: what is written to a parameter stays with this process. Files on network mounts are not mapped:
one that goes away would end the process later on.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.streaming import LOCAL_BLOCK, LocalFile, LocalFiles
from mlload.checkpoint.tensor import DTYPE_BITS
from mlload.loader.destination import Destination
from mlload.loader.dtypes import torch_dtype
from mlload.loader.reads import Read

POPULATE_READ = 22  # MADV_POPULATE_READ of Linux 5.14; Python has no name for it before 3.13
REMOTE_SYSTEMS = (
    "nfs",
    "cifs",
    "smb",
    "fuse",
    "9p",
    "ceph",
    "lustre",
    "gpfs",
    "beegfs",
    "afs",
    "glusterfs",
    "virtiofs",
)


class MappedFile:
    """One file, mapped whole and private."""

    def __init__(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
        self._bytes = np.frombuffer(self._map, dtype=np.uint8)
        self._address = int(self._bytes.ctypes.data)

    @property
    def nbytes(self) -> int:
        return len(self._bytes)

    def tensor(self, start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """The values from `start` on, which must be a multiple of the dtype's size."""
        return torch.frombuffer(self._map, dtype=dtype, count=prod(shape), offset=start).reshape(shape)

    def box(self, read: Read) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The read's bytes where they lie: uint8, of its extent, rows apart as in the file."""
        return np.lib.stride_tricks.as_strided(self._bytes[read.first :], read.extent, read.strides)

    def bring(self, handle: LocalFile, start: int, length: int, *, found: bool) -> None:
        """The pages into memory and into this process's table; returns when they are there.

        handle: of the same file, this thread's own, since the kernel reads ahead for each
        found:  another rank reads them: what is missing still is asked for, and not read once more"""
        if not found:
            read_through(handle, start, length)
        elif hasattr(os, "posix_fadvise"):
            os.posix_fadvise(handle.fileno(), start, length, os.POSIX_FADV_WILLNEED)
        low = start // mmap.PAGESIZE * mmap.PAGESIZE
        if _madvise(self._address + low, start + length - low, POPULATE_READ) != 0:
            self._bytes[start : start + length : mmap.PAGESIZE].max()


class Mappings:
    """The files of a source, each mapped when it is first asked for."""

    def __init__(self, files: LocalFiles) -> None:
        self._files = files
        self._opened: dict[str, MappedFile | None] = {}

    def holding(self, name: str, start: int, length: int) -> MappedFile | None:
        """The file, if it can be mapped and has these bytes."""
        if name not in self._opened:
            self._opened[name] = _open(self._files, name)
        file = self._opened[name]
        return file if file is not None and start + length <= file.nbytes else None


def adopt(mappings: Mappings, reads: Sequence[Read], destinations: Mapping[str, Destination]) -> dict[str, MappedFile]:
    """Make parameters views of the files where they can be; which names, and the file that each lies in.

    A tensor qualifies where its parameter may be replaced (`Destination.adopts`) and its bytes lie in the file as in
    the parameter: whole, or as a run of rows of a column-parallel cut."""
    by_name: dict[str, list[Read]] = {}
    for read in reads:
        by_name.setdefault(read.name, []).append(read)
    found: dict[str, MappedFile] = {}
    for name, mine in by_name.items():
        destination = destinations.get(name)
        if destination is None or not destination.adopts(dtype := torch_dtype(mine[0].dtype)):
            continue
        start = one_run(mine, destination.shape)
        if start is None or start % dtype.itemsize:
            continue
        file = mappings.holding(mine[0].file, start, destination.numel * dtype.itemsize)
        if file is not None:
            destination.adopt(file.tensor(start, dtype, destination.shape))
            found[name] = file
    return found


def cut_out(mappings: Mappings, reads: Sequence[Read], adopted: Mapping[str, MappedFile]) -> dict[Read, MappedFile]:
    """The reads whose bytes lie apart (columns of a row-parallel cut): copied from the mapping they cost one copy,
    where a call for every row costs more than its bytes. Every rank needs these pages of the file, and one reads them.
    """
    found: dict[Read, MappedFile] = {}
    for read in reads:
        if read.name not in adopted and read.span > read.nbytes:
            file = mappings.holding(read.file, read.first, read.span)
            if file is not None:
                found[read] = file
    return found


def bring_all(run: Sequence[tuple[Read, MappedFile | None]], handle: LocalFile, *, found: bool) -> None:
    """Every page of the run's mapped bytes, neighbours together. The run is of one file."""
    file: MappedFile | None = None
    start = stop = 0
    for read, mapped in run:
        if mapped is None:
            continue
        if file is mapped and stop <= read.first <= stop + mmap.PAGESIZE:
            stop = read.first + read.span
            continue
        if file is not None:
            file.bring(handle, start, stop - start, found=found)
        file, start, stop = mapped, read.first, read.first + read.span
    if file is not None:
        file.bring(handle, start, stop - start, found=found)


def read_through(handle: LocalFile, start: int, length: int) -> None:
    """The bytes into the page cache, by plain reads in file order."""
    if not (cached(handle, start) and cached(handle, start + length - 1)):
        scratch = _scratch()
        for position in range(start, start + length, len(scratch)):
            handle.read_into(scratch[: start + length - position], position)
    elif hasattr(os, "posix_fadvise"):  # holes between what others read ahead come in large requests
        os.posix_fadvise(handle.fileno(), start, length, os.POSIX_FADV_WILLNEED)


def cached(handle: LocalFile, position: int) -> bool:
    """Whether a byte of a file can be had without waiting for its disk; False where nobody can say."""
    try:
        return os.preadv(handle.fileno(), [bytearray(1)], position, os.RWF_NOWAIT) == 1
    except (OSError, AttributeError):
        return False


_own = threading.local()


def _scratch() -> memoryview:
    """2 MiB of this thread's, for bytes that only have to pass through the cache."""
    if not hasattr(_own, "scratch"):
        _own.scratch = memoryview(bytearray(LOCAL_BLOCK))
    found: memoryview = _own.scratch
    return found


def one_run(reads: Sequence[Read], shape: tuple[int, ...]) -> int | None:
    """Where in the file the tensor begins, if its reads are one run of bytes in the order of its elements."""
    if DTYPE_BITS.get(reads[0].dtype, 8) % 8 or len({read.file for read in reads}) > 1:
        return None
    size = DTYPE_BITS.get(reads[0].dtype, 8) // 8
    ordered = sorted(reads, key=lambda read: read.first)
    start = at = ordered[0].first
    for read in ordered:
        if read.first != at or not _whole_inside(read.box, read.shape):
            return None
        place = read.to if shape else ()
        offset = 0
        for (low, _), extent in zip(place, shape, strict=True):
            offset = offset * extent + low
        if read.first - start != offset * size or (shape and not _whole_inside(place, shape)):
            return None
        at += read.nbytes
    return start if at - start == prod(shape) * size else None


def _whole_inside(box: Sequence[tuple[int, int]], shape: Sequence[int]) -> bool:
    """Whether a box's elements follow one another: below the first dim that holds several, every dim is whole."""
    inside = False
    for (low, high), extent in zip(box, shape, strict=True):
        if inside and (low, high) != (0, extent):
            return False
        inside = inside or high - low > 1
    return True


def _open(files: LocalFiles, name: str) -> MappedFile | None:
    """None where the file is on a network mount, empty, or of a system that cannot map it."""
    if on_network(files.source.path(name)):
        return None
    try:
        with files.open(name) as handle:
            return MappedFile(handle.fileno())
    except (OSError, ValueError, MlloadError):
        return None  # the plain reader tells why


def on_network(path: str) -> bool:
    """Whether the file system of a path is served by another machine."""
    try:
        device = os.stat(path).st_dev
    except OSError:
        return False
    kind = _systems().get(f"{os.major(device)}:{os.minor(device)}", "")
    return kind.startswith(REMOTE_SYSTEMS)


@lru_cache(maxsize=1)
def _systems() -> dict[str, str]:
    """Device number -> type of file system, of everything that is mounted."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
            # 36 35 98:0 /root /mount options optional - ext4 /dev/root rw
            return {line.split()[2]: line.partition(" - ")[2].split()[0] for line in lines}
    except (OSError, IndexError):
        return {}


_libc = ctypes.CDLL(None, use_errno=True)


def _madvise(address: int, length: int, advice: int) -> int:
    """ctypes lets other threads run meanwhile, which the method of mmap objects does not."""
    return int(_libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), ctypes.c_int(advice)))
