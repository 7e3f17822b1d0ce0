"""Second moments H = X^T X: one [K, K] matrix stands for all calibration tokens that a linear saw.

The squared error of its outputs under a changed weight W' is ||X (W - W')^T||^2 = sum over rows d of W - W' of
d H d^T: no forward pass is needed to try one.
"""

from __future__ import annotations

import torch
from torch import Tensor

TILE = 384  # columns multiplied at a time: H is symmetric, and what lies below its diagonal is not computed
JUDGED_ROWS = 128  # of a weight, evenly spaced, for the error of its outputs


def accumulate(moment: Tensor, rows: Tensor) -> None:
    """Adds X^T X of rows [T, K] to the upper triangle (in tiles) of moment [K, K]."""
    k = rows.shape[1]
    for at in range(0, k, TILE):
        moment[at : at + TILE, at:].addmm_(rows[:, at : at + TILE].T, rows[:, at:])


def mirror(moment: Tensor) -> None:
    """What was accumulated above the diagonal, below it too."""
    if moment.dim() < 2:
        return
    k = moment.shape[0]
    for at in range(TILE, k, TILE):
        moment[at : at + TILE, :at] = moment[:at, at : at + TILE].T


def loss(lost: Tensor, moment: Tensor) -> float:
    """Squared error of the outputs for an error [N, K] of the weights. Of a diagonal [K]: as if channels were
    independent."""
    if moment.dim() == 1:
        return float(lost.square().sum(0) @ moment)
    return float(((lost @ moment) * lost).sum())


def judged(weight: Tensor) -> Tensor:
    """Up to 128 of its rows, evenly spaced; a copy."""
    if weight.shape[0] <= JUDGED_ROWS:
        return weight.clone()
    return weight[torch.linspace(0, weight.shape[0] - 1, JUDGED_ROWS).long().to(weight.device)]


def output_error(weight: Tensor, back: Tensor, moment: Tensor) -> float:
    """||X (W - W')^T|| / ||X W^T|| over the calibration tokens, of up to 128 of the outputs."""
    weight, back = judged(weight), judged(back)
    whole = loss(weight, moment)
    return (max(0.0, loss(back - weight, moment)) / whole) ** 0.5 if whole > 0 else 0.0
