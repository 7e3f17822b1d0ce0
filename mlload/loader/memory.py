"""Host memory for weights: in huge pages where the system has them.

Filling fresh memory costs a page fault every 4 KiB, which is most of the time of a load from the page cache; a huge
page costs one every 2 MiB.
"""

from __future__ import annotations

import mmap
from math import prod

import torch
from torch import Tensor

HUGE = 2 << 20


def host_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A zero tensor on the CPU; one of two huge pages or more lies in pages of its own, aligned to them."""
    nbytes = prod(shape) * dtype.itemsize
    if nbytes < 2 * HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype)
    pages = mmap.mmap(-1, nbytes + HUGE)
    try:
        pages.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel without them
        return torch.zeros(shape, dtype=dtype)
    start = -torch.frombuffer(pages, dtype=torch.uint8).data_ptr() % HUGE
    return torch.frombuffer(pages, dtype=torch.uint8, count=nbytes, offset=start).view(dtype).view(shape)
