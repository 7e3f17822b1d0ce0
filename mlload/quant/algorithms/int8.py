"""INT8 weights with one scale a row, for integer activations (W8A8): symmetric, -127 .. 127."""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 127.0
TINY = 2.0**-40


def scales(weight: Tensor) -> Tensor:
    """float32 [N, 1]."""
    low, high = torch.aminmax(weight, dim=1, keepdim=True)
    return (torch.maximum(high, -low).float() / LARGEST).clamp(min=TINY)


def quantize(weight: Tensor, scale: Tensor) -> Tensor:
    """int8 [N, K]."""
    return (weight.float() / scale).round_().clamp_(-LARGEST, LARGEST).to(torch.int8)


def dequantize(codes: Tensor, scale: Tensor) -> Tensor:
    return codes.float() * scale
