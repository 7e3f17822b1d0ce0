"""AWQ: channels that matter are scaled up before rounding, and what feeds them down (Lin et al., 2023).

N = out_features, K = in_features, G = group size. The error of a rounded weight W' under inputs X is
||X (W - W')^T||^2 = sum over rows d of W - W' of d H d^T with H = X^T X, so that one [K, K] matrix stands for all
calibration tokens: trying a scale costs one product, and no forward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlload.quant.algorithms import integer

RATIOS = tuple(step / 20 for step in range(21))
SAMPLED_ROWS = 512  # of the outputs, to judge a scale by
CLIPS = tuple(1.0 - 0.05 * step for step in range(11))


def candidate(activation: Tensor, weight_share: Tensor, ratio: float) -> Tensor:
    """Scales [K]: activation magnitude to the power ratio over weight magnitude to 1 - ratio (duo-scaling), brought to
    the middle of their range."""
    scale = (activation.pow(ratio) / weight_share.pow(1 - ratio).clamp(min=1e-4)).clamp(min=1e-4)
    return scale / (scale.max() * scale.min()).sqrt()


def weight_share(weight: Tensor, group: int) -> Tensor:
    """[K]: the mean over rows of each weight's magnitude, as a share of the largest of its group."""
    groups = integer.grouped(weight, group).abs()
    return (groups / groups.amax(-1, keepdim=True).clamp(min=1e-12)).reshape(weight.shape).mean(0)


def search_scale(
    weight: Tensor,
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

    weight: [N, K], all linears that see the input, one below the other; moment: H, [K, K]; activation: mean |x|, [K]
    shared: [K], the number of the scale that each channel shares with others (channels of repeated heads)
    """
    share = weight_share(weight, group)
    if weight.shape[0] > SAMPLED_ROWS:
        weight = weight[torch.linspace(0, weight.shape[0] - 1, SAMPLED_ROWS).long()]
    best = torch.ones_like(activation)
    none = least = _loss(weight, best, moment, bits, group, symmetric, dtype)
    for ratio in RATIOS:
        scale = candidate(activation, share, ratio)
        if shared is not None:
            scale = _together(scale, shared)
        loss = _loss(weight, scale, moment, bits, group, symmetric, dtype)
        if loss < least:
            best, least = scale, loss
    return best, least, none


def _together(scale: Tensor, shared: Tensor) -> Tensor:
    """Channels of one number get their geometric mean."""
    count = int(shared.max()) + 1
    logs = torch.zeros(count).index_add_(0, shared, scale.log())
    sizes = torch.zeros(count).index_add_(0, shared, torch.ones_like(scale))
    return (logs / sizes).exp()[shared]


def _loss(
    weight: Tensor, scale: Tensor, moment: Tensor, bits: int, group: int, symmetric: bool, dtype: torch.dtype
) -> float:
    scaled = weight * scale
    grid = integer.fit(scaled, bits, group, symmetric=symmetric, dtype=dtype, clip=False)
    lost = (integer.dequantize(integer.quantize(scaled, grid), grid) / scale).sub_(weight)
    return float(((lost @ moment) * lost).sum())


def clipped_grid(
    weight: Tensor, moment: Tensor, bits: int, group: int, *, symmetric: bool, dtype: torch.dtype
) -> integer.Grid:
    """The grid whose ranges, clipped group by group, lose least of the group's own part of the output.

    moment: H of the inputs that this weight will see, [K, K]; of it the [G, G] blocks on the diagonal are looked at.
    """
    groups = integer.grouped(weight, group)
    size = groups.shape[-1]
    blocks = torch.stack([moment[at : at + size, at : at + size] for at in range(0, moment.shape[0], size)])
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    best = integer.range_grid(low, high, bits, symmetric, dtype)
    least = None
    for clip in CLIPS:
        scale, zero = integer.range_grid(low * clip, high * clip, bits, symmetric, dtype)
        grid = integer.Grid(scale, zero, bits, group)
        lost = integer.dequantize(integer.quantize(weight, grid), grid).sub_(weight).reshape(groups.shape)
        by_group = lost.transpose(0, 1)
        loss = ((by_group @ blocks) * by_group).sum(-1).T
        if least is None:
            least, best = loss, (scale, zero)
            continue
        better = loss < least
        least = torch.where(better, loss, least)
        best = torch.where(better, scale, best[0]), torch.where(better, zero, best[1])
    return integer.Grid(best[0], best[1], bits, group)
