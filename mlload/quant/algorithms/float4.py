"""FP4 (e2m1) weights: MXFP4 with power-of-two scales per 32, NVFP4 with fp8 scales per 16 under a global one.

Sources: OCP Microscaling (MX) v1.0; NVIDIA's NVFP4 (global scale 448 * 6 / amax, block scales e4m3).
"""

from __future__ import annotations

import torch
from torch import Tensor

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Halfway between neighbours; where two codes are as near, the even one is taken.
MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
MX_GROUP, NV_GROUP = 32, 16
E8M0_BIAS = 127


def encode(values: Tensor) -> Tensor:
    """Codes uint8 of the nearest e2m1 values, saturating; bit 3 is the sign."""
    size = values.abs()
    middles = torch.tensor(MIDDLES, device=values.device)
    # A value on a middle stays below it for even codes (right=False), and goes above it for odd ones.
    codes = torch.bucketize(size, middles, right=False)
    above = torch.bucketize(size, middles, right=True)
    codes = torch.where((codes != above) & (codes % 2 == 1), above, codes)
    return (codes + 8 * (values.signbit() & (codes > 0))).to(torch.uint8)


def decode(codes: Tensor) -> Tensor:
    """float32 values of codes."""
    half = torch.tensor(MAGNITUDES, device=codes.device)
    return torch.cat([half, -half])[codes.long()]


def mx_quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(codes uint8 [N, K], scales uint8 e8m0 [N, K/32]). Of the exponent that covers the largest magnitude and the
    one below it, which clips a few weights and is finer for the rest, each group has the better."""
    groups = weight.float().reshape(weight.shape[0], -1, MX_GROUP)
    largest = groups.abs().amax(-1).clamp(min=2.0**-100)
    base = torch.ceil(torch.log2(largest / 6.0))
    found = []
    for exponent in (base.clamp(-E8M0_BIAS, E8M0_BIAS), (base - 1).clamp(-E8M0_BIAS, E8M0_BIAS)):
        scale = torch.exp2(exponent)[..., None]
        codes = encode(groups / scale)
        found.append((codes, exponent, (decode(codes) * scale - groups).square().sum(-1)))
    codes, exponent = _better(*found)
    return codes.reshape(weight.shape), (exponent + E8M0_BIAS).to(torch.uint8)


def _better(one: tuple[Tensor, Tensor, Tensor], other: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Per group the (codes, scale) of the smaller loss."""
    other_wins = other[2] < one[2]
    return torch.where(other_wins[..., None], other[0], one[0]), torch.where(other_wins, other[1], one[1])


def mx_dequantize(codes: Tensor, scale: Tensor) -> Tensor:
    groups = decode(codes).reshape(codes.shape[0], -1, MX_GROUP)
    return (groups * torch.exp2(scale.float() - E8M0_BIAS)[..., None]).reshape(codes.shape)


def nv_global(largest: Tensor | float) -> Tensor:
    """The global scale (a divisor) under which the largest block scale is 448; float32 [1]."""
    amax = torch.as_tensor(largest, dtype=torch.float32).reshape(1).clamp(min=2.0**-60)
    return 448.0 * 6.0 / amax


def nv_quantize(weight: Tensor, divisor: Tensor) -> tuple[Tensor, Tensor]:
    """(codes uint8 [N, K], block scales float8_e4m3fn [N, K/16]). A block's largest magnitude becomes 6 or 4,
    whichever loses less: the step between 4 and 6 is the coarsest."""
    groups = weight.float().reshape(weight.shape[0], -1, NV_GROUP)
    largest = groups.abs().amax(-1)
    found = []
    for top in (6.0, 4.0):
        stored = (largest / top * divisor).clamp(max=448.0).to(torch.float8_e4m3fn).float()
        scale = (stored / divisor)[..., None]
        codes = encode(torch.where(scale > 0, groups / scale.clamp(min=2.0**-100), 0.0))
        found.append((codes, stored, (decode(codes) * scale - groups).square().sum(-1)))
    codes, stored = _better(*found)
    return codes.reshape(weight.shape), stored.to(torch.float8_e4m3fn)


def nv_dequantize(codes: Tensor, scale: Tensor, divisor: Tensor) -> Tensor:
    groups = decode(codes).reshape(codes.shape[0], -1, NV_GROUP)
    return (groups * (scale.float() / divisor)[..., None]).reshape(codes.shape)
