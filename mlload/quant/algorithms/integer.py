"""Integers of b bits in groups: grids (scale and zero point), rounding, and clipping that minimises the error.

N = out_features, K = in_features, G = group size (-1: all of K), b = bits. Codes are 0 .. 2**b - 1 and stand for
`(code - zero) * scale`; a symmetric grid has the zero 2**(b-1).
Asymmetric grids keep zero inside the range, so that a weight of 0 stays 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Ranges tried, as shares of the largest magnitude: clipping a few weights makes the steps of all others finer.
SHRINKS = tuple(1.0 - 0.05 * step for step in range(11))
# What a weight's error counts, as its power. By the square weights err less, but SmolLM2's output more: ranges that
# cut off much make few and large errors, all towards zero (figures in docs/quantize.md).
NORM = 2.4
ROWS = 1 << 22  # elements quantized at a time, so that temporaries stay small


class Grid(NamedTuple):
    """scale: float32 [N, K/G]; zero: float32 [N, K/G], whole numbers; bits; group: G"""

    scale: Tensor
    zero: Tensor
    bits: int
    group: int


def grouped(weight: Tensor, group: int) -> Tensor:
    """[N, K] -> [N, K/G, G]."""
    n, k = weight.shape
    return weight.reshape(n, -1, k if group < 0 else group)


def range_grid(low: Tensor, high: Tensor, bits: int, symmetric: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Scale and zero of ranges low <= 0 <= high; the scale is one that `dtype` can hold, and never 0."""
    top = (1 << bits) - 1
    tiny = torch.finfo(dtype).tiny
    # Symmetric codes reach from -2**(b-1) to 2**(b-1) - 1.
    scale = torch.maximum(high, -low) / (top // 2) if symmetric else (high - low) / top
    scale = scale.to(dtype).float().clamp(min=tiny)
    if symmetric:
        return scale, torch.full_like(scale, float(1 << (bits - 1)))
    return scale, (-low / scale).round().clamp(0, top)


def fit(
    weight: Tensor,
    bits: int,
    group: int,
    *,
    symmetric: bool,
    dtype: torch.dtype,
    clip: bool = True,
    importance: Tensor | None = None,
) -> Grid:
    """The grid of a weight [N, K] with the least sum of |error|**NORM, over ranges of SHRINKS times the whole one.

    dtype: in which scales will be stored. importance: [K], what an error in each input channel counts.
    """
    step = max(1, ROWS // weight.shape[1])
    parts = [
        _fit(weight[at : at + step].float(), bits, group, symmetric, dtype, clip, importance)
        for at in range(0, weight.shape[0], step)
    ]
    return Grid(torch.cat([s for s, _ in parts]), torch.cat([z for _, z in parts]), bits, group)


def _fit(
    weight: Tensor, bits: int, group: int, symmetric: bool, dtype: torch.dtype, clip: bool, importance: Tensor | None
) -> tuple[Tensor, Tensor]:
    groups = grouped(weight, group)
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    best = range_grid(low, high, bits, symmetric, dtype)
    if not clip:
        return best
    share = None if importance is None else grouped(importance[None], group)

    def loss(scale: Tensor, zero: Tensor) -> Tensor:
        error = rounded(groups, scale[..., None], zero[..., None], bits).sub_(groups).abs_().pow_(NORM)
        return (error if share is None else error.mul_(share)).sum(-1)

    return cheapest([range_grid(low * shrink, high * shrink, bits, symmetric, dtype) for shrink in SHRINKS], loss)


def cheapest(grids: Sequence[tuple[Tensor, Tensor]], loss: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Of several grids (scale, zero), all [N, groups], the one of least loss, group by group; the first of equals."""
    best = grids[0]
    least = loss(*best)
    for scale, zero in grids[1:]:
        lost = loss(scale, zero)
        better = lost < least
        least = torch.where(better, lost, least)
        best = torch.where(better, scale, best[0]), torch.where(better, zero, best[1])
    return best


def rounded(groups: Tensor, scale: Tensor, zero: Tensor, bits: int) -> Tensor:
    """The values that codes of `groups` stand for, without making the codes; scale and zero broadcast."""
    # round(w / s) between -zero and top - zero is round(w / s) + zero between 0 and top: one pass less.
    return (groups / scale).round_().clamp_(-zero, (1 << bits) - 1 - zero).mul_(scale)


def quantize(weight: Tensor, grid: Grid) -> Tensor:
    """Codes uint8 [N, K] of the nearest values."""
    groups = grouped(weight.float(), grid.group)
    codes = (groups / grid.scale[..., None]).round_().add_(grid.zero[..., None])
    return codes.clamp_(0, (1 << grid.bits) - 1).to(torch.uint8).reshape(weight.shape)


def dequantize(codes: Tensor, grid: Grid) -> Tensor:
    """float32 [N, K]."""
    groups = grouped(codes.float(), grid.group)
    return groups.sub_(grid.zero[..., None]).mul_(grid.scale[..., None]).reshape(codes.shape)
