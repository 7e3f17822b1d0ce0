"""SmoothQuant: part of the activations' spread is moved into the weights, so that both fit 8 bits (Xiao et al., 2022).

K = in_features. Inputs are divided by s [K] and weights multiplied by it, s = max |x|^alpha / max |w|^(1 - alpha).
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAST = 1e-5


def scale(peak: Tensor, weight: Tensor, alpha: float) -> Tensor:
    """s [K], about 1 in the middle; 1 for a channel that is all zero.

    peak: greatest |x|, [K]; weight: [N, K], all linears that see the input, one below the other
    """
    largest = weight.abs().amax(0)
    found = peak.clamp(min=LEAST).pow(alpha) / largest.clamp(min=LEAST).pow(1 - alpha)
    found = found / found.log().mean().exp()
    return torch.where((peak > 0) & (largest > 0), found, torch.ones_like(found))
