"""The packed layout of our weight-only kernels: codes in K-planes, 16-bit words, tiles contiguous in memory.

A tile is 64 rows of N by BK columns of K, BK = planes * P. Word j of a row holds, lowest bits first, the codes of
the columns j, P + j, 2P + j, ... of the tile: four 4-bit planes or two 8-bit ones. So each plane is unpacked without
any permutation into P consecutive columns, a warp reads a tile in 16-byte pieces, and activations stay as they are.
    packed int16 [N/64, K/BK, 64, P]   (N and K padded up; what pads must count as zero)
P is 32 for 4-bit codes and 64 for 8-bit ones, or the group where that is smaller, so that a plane never straddles two
groups.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

ROWS = 64


class Layout(NamedTuple):
    """bits of a code, P = width of a plane."""

    bits: int
    width: int

    @property
    def planes(self) -> int:
        return 16 // self.bits

    @property
    def columns(self) -> int:
        """BK: columns of K in a tile."""
        return self.planes * self.width


def layout_for(bits: int, group: int) -> Layout:
    """group: values along K that share a scale; -1 for the whole row."""
    widest = 32 if bits == 4 else 64
    return Layout(bits, widest if group < 0 else min(widest, group))


def pack(codes: Tensor, layout: Layout, fill: int) -> Tensor:
    """uint8 codes [N, K] -> int16 [ceil(N/64), ceil(K/BK), 64, P]; `fill` is the code of the padding."""
    n, k = codes.shape
    rows, tiles = -(-n // ROWS), -(-k // layout.columns)
    if (rows * ROWS, tiles * layout.columns) != (n, k):
        whole = codes.new_full((rows * ROWS, tiles * layout.columns), fill)
        whole[:n, :k] = codes
        codes = whole
    split = codes.reshape(rows, ROWS, tiles, layout.planes, layout.width)
    words = torch.zeros(rows, ROWS, tiles, layout.width, dtype=torch.int32, device=codes.device)
    for plane in range(layout.planes):
        words |= split[:, :, :, plane].to(torch.int32) << (plane * layout.bits)
    return words.to(torch.int16).transpose(1, 2).contiguous()


def unpack(packed: Tensor, layout: Layout, n: int, k: int) -> Tensor:
    """The codes again, uint8 [N, K]."""
    words = packed.transpose(1, 2).to(torch.int32)
    mask = (1 << layout.bits) - 1
    planes = [((words >> (plane * layout.bits)) & mask).to(torch.uint8) for plane in range(layout.planes)]
    return torch.stack(planes, -2).reshape(packed.shape[0] * ROWS, -1)[:n, :k]


def pad_rows(values: Tensor) -> Tensor:
    """[groups, N] -> [groups, ceil(N/64) * 64], zeros added: what is read beside a tile of 64 rows."""
    missing = -values.shape[-1] % ROWS
    if not missing:
        return values.contiguous()
    whole = values.new_zeros(*values.shape[:-1], values.shape[-1] + missing)
    whole[..., : values.shape[-1]] = values
    return whole
