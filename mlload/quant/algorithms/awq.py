"""AWQ: channels that matter are scaled up before rounding, and what feeds them down (Lin et al., 2023).

N = out_features, K = in_features, G = group size. Losses are those of `moment`: trying a scale costs one product with
H, and no forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mlload.quant.algorithms import integer
from mlload.quant.algorithms import moment as second

COARSE, FINE = 0.1, 0.05  # steps between ratios: the whole range by the first, around the best by the second
SAMPLED_ROWS = 256  # of the outputs, to judge a scale by
ELEMENTS = 1 << 21  # of a weight, looked at together: temporaries are a few times that
CLIPS = tuple(1.0 - 0.05 * step for step in range(11))


def candidate(activation: Tensor, weight_share: Tensor, ratio: float) -> Tensor:
    """Scales [K]: activation magnitude to the power ratio over weight magnitude to 1 - ratio (duo-scaling), brought to
    the middle of their range."""
    scale = (activation.pow(ratio) / weight_share.pow(1 - ratio).clamp(min=1e-4)).clamp(min=1e-4)
    return scale / (scale.max() * scale.min()).sqrt()


def weight_share(weights: Sequence[Tensor], group: int) -> Tensor:
    """[K]: the mean over all rows of each weight's magnitude, as a share of the largest of its group."""
    k, rows = weights[0].shape[1], sum(len(weight) for weight in weights)
    size = k if group < 0 else group
    columns = max(size, ELEMENTS // rows // size * size)
    found = weights[0].new_empty(k)
    for at in range(0, k, columns):
        part = torch.cat([weight[:, at : at + columns] for weight in weights]).abs_()
        groups = integer.grouped(part, size)
        groups.div_(groups.amax(-1, keepdim=True).clamp(min=1e-12))
        found[at : at + columns] = groups.reshape(part.shape).mean(0)
    return found


def sampled(weights: Sequence[Tensor]) -> Tensor:
    """Up to 256 rows of what lies one below the other, evenly spaced."""
    rows = sum(len(weight) for weight in weights)
    if rows <= SAMPLED_ROWS:
        return torch.cat(list(weights))
    some, at, found = torch.linspace(0, rows - 1, SAMPLED_ROWS).long(), 0, []
    for weight in weights:
        mine = some[(some >= at) & (some < at + len(weight))] - at
        found.append(weight[mine.to(weight.device)])
        at += len(weight)
    return torch.cat(found)


def search_scale(
    weights: Sequence[Tensor],
    moment: Tensor,
    activation: Tensor,
    bits: int,
    group: int,
    *,
    symmetric: bool,
    dtype: torch.dtype,
    shared: Tensor | None = None,
) -> tuple[Tensor, float, float]:
    """The scale [K] under which rounding loses least, the loss with it, and the loss without any.

    weights: [N, K] each, of all linears that see the input; moment: H, [K, K]; activation: mean |x|, [K]
    shared: [K], the number of the scale that each channel shares with others (channels of repeated heads)
    """
    share, weight = weight_share(weights, group), sampled(weights)
    tried: dict[float, tuple[float, Tensor]] = {}

    def attempt(ratio: float) -> None:
        scale = candidate(activation, share, ratio)
        if shared is not None:
            scale = _together(scale, shared)
        tried[ratio] = _loss(weight, scale, moment, bits, group, symmetric, dtype), scale

    for step in range(round(1 / COARSE) + 1):
        attempt(step * COARSE)
    middle = min(tried, key=lambda ratio: tried[ratio][0])
    for ratio in (middle - FINE, middle + FINE):
        if 0 <= ratio <= 1:
            attempt(ratio)
    least, best = min(tried.values(), key=lambda found: found[0])
    one = torch.ones_like(activation)
    none = _loss(weight, one, moment, bits, group, symmetric, dtype)
    return (best, least, none) if least < none else (one, none, none)


def _together(scale: Tensor, shared: Tensor) -> Tensor:
    """Channels of one number get their geometric mean."""
    count = int(shared.max()) + 1
    logs = scale.new_zeros(count).index_add_(0, shared, scale.log())
    sizes = scale.new_zeros(count).index_add_(0, shared, torch.ones_like(scale))
    return (logs / sizes).exp()[shared]


def _loss(
    weight: Tensor, scale: Tensor, moment: Tensor, bits: int, group: int, symmetric: bool, dtype: torch.dtype
) -> float:
    groups = integer.grouped(weight * scale, group)
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    step, zero = integer.range_grid(low, high, bits, symmetric, dtype)
    back = integer.rounded(groups, step[..., None], zero[..., None], bits).reshape(weight.shape)
    return second.loss(back.div_(scale).sub_(weight), moment)


def clipped_grid(
    weight: Tensor, moment: Tensor, bits: int, group: int, *, symmetric: bool, dtype: torch.dtype
) -> integer.Grid:
    """The grid whose ranges, clipped group by group, lose least of the group's own part of the output.

    moment: H of the inputs that this weight will see, [K, K]; of it the [G, G] blocks on the diagonal are looked at.
    """
    k = weight.shape[1]
    size = k if group < 0 else group
    blocks = (
        torch.stack([moment[at : at + size, at : at + size] for at in range(0, k, size)]) if size < k else moment[None]
    )
    step = max(1, ELEMENTS // k)
    parts = [
        _clipped(integer.grouped(weight[at : at + step], group), blocks, bits, symmetric, dtype)
        for at in range(0, len(weight), step)
    ]
    return integer.Grid(torch.cat([s for s, _ in parts]), torch.cat([z for _, z in parts]), bits, group)


def _clipped(groups: Tensor, blocks: Tensor, bits: int, symmetric: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Scale and zero [rows, K/G] of groups [rows, K/G, G]; blocks: [K/G, G, G]"""
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)

    def loss(scale: Tensor, zero: Tensor) -> Tensor:
        lost = integer.rounded(groups, scale[..., None], zero[..., None], bits).sub_(groups)
        by_group = lost.transpose(0, 1)
        return (by_group @ blocks).mul_(by_group).sum(-1).T

    return integer.cheapest([integer.range_grid(low * c, high * c, bits, symmetric, dtype) for c in CLIPS], loss)
