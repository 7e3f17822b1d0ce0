"""Routed rows sorted by expert, on the device, in a fixed shape: nothing waits for the host, CUDA graphs can hold it.

    ids [T, top_k] experts of each token (-1: not on this rank) -> blocks of BM slots that share an expert
A slot is token * top_k + choice. The grid is the most blocks that any routing can need, so that it does not depend on
the routing; blocks that are not needed carry expert -1 and return at once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Routing(NamedTuple):
    """rows: int32 [blocks * BM], slots, T * top_k where there is none; experts: int32 [blocks], -1 for none."""

    rows: Tensor
    experts: Tensor


def most_blocks(slots: int, experts: int, block: int) -> int:
    """Each expert that is touched may leave one block that is not full."""
    return slots // block + min(experts, slots)


def align(ids: Tensor, experts: int, block: int) -> Routing:
    flat = ids.reshape(-1).to(torch.int64)
    slots = flat.shape[0]
    # What belongs to no expert here is sorted behind the last one and dropped.
    flat = torch.where(flat < 0, experts, flat)
    counts = torch.zeros(experts + 1, dtype=torch.int64, device=ids.device).scatter_add_(0, flat, torch.ones_like(flat))
    padded = torch.div(counts + block - 1, block, rounding_mode="floor") * block
    ends = padded.cumsum(0)
    order = torch.argsort(flat, stable=True)
    owner = flat[order]
    inside = torch.arange(slots, device=ids.device) - (counts.cumsum(0) - counts)[owner]
    blocks = most_blocks(slots, experts, block)
    target = torch.where(owner < experts, (ends - padded)[owner] + inside, blocks * block)
    rows = torch.full((blocks * block + 1,), slots, dtype=torch.int32, device=ids.device)
    rows.scatter_(0, target, order.to(torch.int32))
    starts = torch.arange(blocks, device=ids.device) * block
    of = torch.searchsorted(ends[:experts], starts, right=True)
    return Routing(rows[: blocks * block], torch.where(of < experts, of, -1).to(torch.int32))
