"""GPTQ: columns are rounded one by one, and each one's error is taken up by those to come (Frantar et al., 2022).

N = out_features, K = in_features, G = group size. Grids are fixed before any column is rounded ("static groups"), so
that columns may be rounded in order of importance ("act-order") and still be stored in their own order: engines that
refuse a g_idx load the result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlload.quant.algorithms import integer

BLOCK = 128
DAMPING = 0.01  # share of the mean diagonal that is added to it
TRIES = 6


def quantize(
    weight: Tensor, moment: Tensor, grid: integer.Grid, *, act_order: bool = True, damping: float = DAMPING
) -> Tensor:
    """Codes uint8 [N, K] under the grid's scales.

    weight: float32 [N, K]; moment: H = X^T X of its inputs, [K, K]
    """
    weight, moment = weight.clone(), moment.clone()
    n, k = weight.shape
    size = k if grid.group < 0 else grid.group
    dead = moment.diagonal() == 0
    moment.diagonal()[dead] = 1.0
    weight[:, dead] = 0.0
    order = torch.argsort(moment.diagonal(), descending=True) if act_order else torch.arange(k)
    weight, moment = weight[:, order], moment[order][:, order]
    inverse = upper_inverse(moment, damping)
    group_of = torch.div(order, size, rounding_mode="floor")
    scale, zero = grid.scale[:, group_of], grid.zero[:, group_of]
    top = (1 << grid.bits) - 1
    codes = torch.empty((n, k), dtype=torch.uint8)
    for start in range(0, k, BLOCK):
        stop = min(start + BLOCK, k)
        block = weight[:, start:stop].T.contiguous()
        errors = torch.empty_like(block)
        local = inverse[start:stop, start:stop]
        steps, zeros = scale[:, start:stop].T.contiguous(), zero[:, start:stop].T.contiguous()
        for i in range(stop - start):
            column = block[i]
            code = (column / steps[i]).round_().add_(zeros[i]).clamp_(0, top)
            codes[:, start + i] = code.to(torch.uint8)
            error = (column - (code - zeros[i]) * steps[i]) / local[i, i]
            errors[i] = error
            block[i + 1 :].addr_(local[i, i + 1 :], error, alpha=-1.0)
        weight[:, stop:].addmm_(errors.T, inverse[start:stop, stop:], alpha=-1.0)
    back = torch.empty_like(codes)
    back[:, order] = codes
    return back


def upper_inverse(moment: Tensor, damping: float) -> Tensor:
    """The upper Cholesky factor of H^-1. Where H is too near to singular the damping is raised tenfold, and again."""
    mean = float(moment.diagonal().mean())
    for step in range(TRIES):
        damped = moment.clone()
        damped.diagonal().add_(damping * 10**step * mean)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if int(failed) == 0:
            factor: Tensor
            factor, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if int(failed) == 0 and bool(torch.isfinite(factor).all()):
                return factor
    raise ValueError("the second moment of the inputs is not positive, whatever the damping")
