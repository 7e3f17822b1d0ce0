"""Freed memory of slabs stays with the process, to be used for the next slab.

glibc gives blocks of some megabytes back to the system as soon as they are freed, and takes new ones: clearing their
pages costs several times what is computed on them.
"""

from __future__ import annotations

import ctypes
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # mallopt(3)
KEPT = 64 * 2**20  # bytes at the end of a heap that are not given back
MAPPED = 32 * 2**20  # bytes from which on a block is one of its own, and goes when it is freed: the most glibc allows


def keep_slabs() -> None:
    """From now on, for all threads. Nothing happens where the C library is another one."""
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(MMAP_THRESHOLD, MAPPED)
    mallopt(TRIM_THRESHOLD, KEPT)
