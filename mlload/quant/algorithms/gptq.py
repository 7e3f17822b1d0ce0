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
    codes = torch.empty((k, n))
    for start in range(0, k, BLOCK):
        stop = min(start + BLOCK, k)
        block = weight[:, start:stop].T.contiguous()
        errors = torch.empty_like(block)
        local = inverse[start:stop, start:stop]
        pivots = local.diagonal().tolist()
        steps, zeros = scale[:, start:stop].T.contiguous(), zero[:, start:stop].T.contiguous()
        for i in range(stop - start):
            column = block[i]
            code = torch.div(column, steps[i], out=codes[start + i]).round_().add_(zeros[i]).clamp_(0, top)
            error = torch.sub(column, (code - zeros[i]).mul_(steps[i]), out=errors[i]).div_(pivots[i])
            block[i + 1 :].addr_(local[i, i + 1 :], error, alpha=-1.0)
        weight[:, stop:].addmm_(errors.T, inverse[start:stop, stop:], alpha=-1.0)
    back = torch.empty((n, k), dtype=torch.uint8)
    back[:, order] = codes.to(torch.uint8).T
    return back


def upper_inverse(moment: Tensor, damping: float) -> Tensor:
    """R, upper, with R^T R = H^-1. Where H is too near to singular the damping is raised tenfold, and again.

    H turned about both axes is L L^T; turned back that is U U^T with U upper, and R is the inverse of U: one
    factorisation and one triangular solve, and H^-1 itself is never made.
    """
    mean = float(moment.diagonal().mean())
    one = torch.eye(moment.shape[0])
    for step in range(TRIES):
        damped = moment.flip(0, 1)
        damped.diagonal().add_(damping * 10**step * mean)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if int(failed) == 0:
            factor: Tensor = torch.linalg.solve_triangular(lower.flip(0, 1), one, upper=True)
            if bool(torch.isfinite(factor).all()):
                return factor
    raise ValueError("the second moment of the inputs is not positive, whatever the damping")
