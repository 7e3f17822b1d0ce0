"""GPTQ: columns are rounded one by one, and each one's error is taken up by those to come (Frantar et al., 2022).

N = out_features, K = in_features, G = group size. Grids are fixed before any column is rounded ("static groups"), so
that columns may be rounded in order of importance ("act-order") and still be stored in their own order: engines that
refuse a g_idx load the result.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mlload.quant.algorithms import integer

BLOCK = 128
DAMPING = 0.01  # share of the mean diagonal that is added to it
TRIES = 6
ELEMENTS = 1 << 24  # of a weight, rounded together
PIECE = 256  # rows or columns of a moment, worked on together


class Prepared(NamedTuple):
    """What all weights that see one input share. order: [K], in which columns are rounded; dead: bool [K], columns
    whose input is always 0; inverse: [K, K], see `inverse_factor`"""

    order: Tensor
    dead: Tensor
    inverse: Tensor


def prepare(moment: Tensor, *, act_order: bool = True, damping: float = DAMPING) -> Prepared:
    """moment: H = X^T X of the inputs, float32 [K, K]; one matrix of its size is made, and no other."""
    diagonal = moment.diagonal().clone()
    dead = diagonal == 0
    diagonal[dead] = 1.0
    order = torch.argsort(diagonal, descending=True) if act_order else torch.arange(len(moment), device=moment.device)
    return Prepared(order, dead, inverse_factor(moment, diagonal, order, damping))


def quantize(weight: Tensor, prepared: Prepared, grid: integer.Grid) -> Tensor:
    """Codes uint8 [N, K] under the grid's scales. weight: float32 [N, K]"""
    n, k = weight.shape
    step = max(1, ELEMENTS // k)
    found = torch.empty((n, k), dtype=torch.uint8, device=weight.device)
    for at in range(0, n, step):
        rows = slice(at, at + step)
        part = integer.Grid(grid.scale[rows], grid.zero[rows], grid.bits, grid.group)
        found[rows, prepared.order] = _rounded(weight[rows], prepared, part).T
    return found


def _rounded(weight: Tensor, prepared: Prepared, grid: integer.Grid) -> Tensor:
    """Codes uint8 [K, N], columns in the order in which they are rounded."""
    order, dead, inverse = prepared
    n, k = weight.shape
    size = k if grid.group < 0 else grid.group
    weight = weight[:, order]
    weight[:, dead[order]] = 0.0
    group_of = torch.div(order, size, rounding_mode="floor")
    top = (1 << grid.bits) - 1
    codes = torch.empty((k, n), dtype=torch.uint8, device=weight.device)
    for start in range(0, k, BLOCK):
        stop = min(start + BLOCK, k)
        block = weight[:, start:stop].T.contiguous()
        errors = torch.empty_like(block)
        # Rows start .. stop of R, see `inverse_factor`.
        factor = inverse[k - stop : k - start, : k - start].flip(0, 1)
        local, later = factor[:, : stop - start], factor[:, stop - start :]
        pivots = local.diagonal().tolist()
        groups = group_of[start:stop]
        steps, zeros = grid.scale[:, groups].T.contiguous(), grid.zero[:, groups].T.contiguous()
        for i in range(stop - start):
            column = block[i]
            code = torch.div(column, steps[i]).round_().add_(zeros[i]).clamp_(0, top)
            codes[start + i] = code
            error = torch.sub(column, (code - zeros[i]).mul_(steps[i]), out=errors[i]).div_(pivots[i])
            block[i + 1 :].addr_(local[i, i + 1 :], error, alpha=-1.0)
        weight[:, stop:].addmm_(errors.T, later, alpha=-1.0)
    return codes


def inverse_factor(moment: Tensor, diagonal: Tensor, order: Tensor, damping: float) -> Tensor:
    """M, lower [K, K]: for H with its columns in `order`, its diagonal replaced and damped, H^-1 = R^T R, where R is
    upper and M turned about both axes. Where H is too near to singular the damping is raised tenfold, and again.

    H in the opposite order is L L^T, and M is the inverse of L. Both are made in the place of the one copy.
    """
    mean, turned = float(diagonal.mean()), order.flip(0)
    made = torch.empty_like(moment)
    failed = torch.empty((), dtype=torch.int32, device=moment.device)
    for step in range(TRIES):
        for at in range(0, len(made), PIECE):
            made[at : at + PIECE] = moment[turned[at : at + PIECE]][:, turned]
        made.diagonal().copy_(diagonal[turned]).add_(damping * 10**step * mean)
        lower = made.mT  # symmetric until now, and laid out as LAPACK wants it
        torch.linalg.cholesky_ex(lower, out=(lower, failed))
        if int(failed) == 0:
            _invert(lower)
            least, most = torch.aminmax(made)  # of its transpose a copy would be made
            if bool(torch.isfinite(least) & torch.isfinite(most)):
                return lower
    raise ValueError("the second moment of the inputs is not positive, whatever the damping")


def _invert(lower: Tensor) -> None:
    """In its place, from the last columns to the first."""
    k = len(lower)
    for start in reversed(range(0, k, PIECE)):
        stop = min(start + PIECE, k)
        one = torch.eye(stop - start, device=lower.device)
        own = torch.linalg.solve_triangular(lower[start:stop, start:stop], one, upper=False)
        below = lower[stop:, start:stop]
        below.copy_((lower[stop:, stop:] @ below).neg_() @ own)
        lower[start:stop, start:stop] = own
