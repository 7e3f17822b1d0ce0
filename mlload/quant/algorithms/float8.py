"""FP8 (e4m3) weights with one scale a tensor, a row or a block. Source: OFP8 (Micikevicius et al., 2022)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

LARGEST = 448.0
TINY = 2.0**-40  # a scale for what is all zero


def scales(weight: Tensor, strategy: Literal["tensor", "channel", "block"], block: tuple[int, int] = (0, 0)) -> Tensor:
    """float32 scales that bring the largest magnitude to 448: [1], [N, 1] or [ceil(N/bn), ceil(K/bk)]."""
    if strategy == "tensor":
        low, high = torch.aminmax(weight)
        return (torch.maximum(high, -low).float() / LARGEST).clamp(min=TINY).reshape(1)
    if strategy == "channel":
        return (weight.abs().amax(1, keepdim=True).float() / LARGEST).clamp(min=TINY)
    bn, bk = block
    n, k = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -k % bk, 0, -n % bn))
    blocks = padded.reshape(padded.shape[0] // bn, bn, padded.shape[1] // bk, bk)
    return (blocks.abs().amax((1, 3)).float() / LARGEST).clamp(min=TINY)


def quantize(weight: Tensor, scale: Tensor, block: tuple[int, int] = (0, 0)) -> Tensor:
    """float8_e4m3fn [N, K], rounded to nearest even, never beyond 448."""
    spread = expand(scale, weight.shape, block)
    return (weight.float() / spread).clamp_(-LARGEST, LARGEST).to(torch.float8_e4m3fn)


def expand(scale: Tensor, shape: torch.Size, block: tuple[int, int] = (0, 0)) -> Tensor:
    """Scales brought to where they broadcast against [N, K]."""
    if block == (0, 0) or scale.numel() == 1:
        return scale
    return scale.repeat_interleave(block[0], 0)[: shape[0]].repeat_interleave(block[1], 1)[:, : shape[1]]


def dequantize(codes: Tensor, scale: Tensor, block: tuple[int, int] = (0, 0)) -> Tensor:
    return codes.float() * expand(scale, codes.shape, block)
