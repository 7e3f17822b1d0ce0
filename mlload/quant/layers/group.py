"""The ranks that share a layer, and the two things they do together."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


class Group(NamedTuple):
    """rank of size; alone (size 1) nothing is sent. torch.distributed must be initialized otherwise."""

    rank: int = 0
    size: int = 1

    def sum(self, x: Tensor) -> Tensor:
        """The sum over the ranks. gloo adds 16-bit floats in their own dtype, so these travel as float32."""
        if self.size == 1:
            return x
        half = x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16)
        total = x.float() if half else x.contiguous()
        dist.all_reduce(total)
        return total.to(x.dtype)

    def join(self, x: Tensor) -> Tensor:
        """The ranks' tensors one after another along the last dim."""
        if self.size == 1:
            return x
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, -1)


ALONE = Group()
