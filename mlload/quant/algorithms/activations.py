"""Activations as an engine's kernels round them, on float tensors: what a scheme costs beside its weights.

x: [..., K]. Scales are computed from x (by token, by group, by block of NVFP4), or were stored.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlload.quant.algorithms import float4, float8, int8

TINY = 2.0**-40


def by_token_int8(x: Tensor) -> Tensor:
    scale = (x.abs().amax(-1, keepdim=True) / int8.LARGEST).clamp(min=TINY)
    return (x / scale).round_().clamp_(-int8.LARGEST, int8.LARGEST).mul_(scale)


def by_token_float8(x: Tensor) -> Tensor:
    return _float8(x, (x.abs().amax(-1, keepdim=True) / float8.LARGEST).clamp(min=TINY))


def by_group_float8(x: Tensor, group: int) -> Tensor:
    """A scale for each `group` channels of a token; the last group may be short."""
    short = -x.shape[-1] % group
    padded = torch.nn.functional.pad(x, (0, short))
    groups = padded.reshape(*x.shape[:-1], -1, group)
    return by_token_float8(groups).reshape(padded.shape)[..., : x.shape[-1]]


def static_float8(x: Tensor, scale: Tensor) -> Tensor:
    """scale: one element, of all tokens; what is larger than 448 times it saturates."""
    return _float8(x, scale.float().reshape(()))


def mxfp4(x: Tensor) -> Tensor:
    """Scales 2^e per 32 channels, e = floor(log2(amax)) - 2 (OCP Microscaling v1.0, 6.3), and one more where amax has
    1.75 or more before its power of two: it is then nearer to 4 times the next scale than to 6 times this one."""
    groups = x.reshape(*x.shape[:-1], -1, float4.MX_GROUP)
    largest = groups.abs().amax(-1, keepdim=True).clamp(min=2.0**-100)
    exponent = torch.floor(torch.log2(largest / 1.75 * 2)) - 2
    scale = torch.exp2(exponent)
    return (float4.decode(float4.encode(groups / scale)) * scale).reshape(x.shape)


def nvfp4(x: Tensor, divisor: Tensor) -> Tensor:
    """Scales of fp8 per 16 channels under the stored global one (a divisor, 448 * 6 / amax)."""
    groups = x.reshape(*x.shape[:-1], -1, float4.NV_GROUP)
    divisor = divisor.float().reshape(())
    stored = groups.abs().amax(-1, keepdim=True) / 6.0 * divisor
    scale = stored.clamp(max=float8.LARGEST).to(torch.float8_e4m3fn).float() / divisor
    codes = float4.encode(torch.where(scale > 0, groups / scale.clamp(min=2.0**-100), 0.0))
    return (float4.decode(codes) * scale).reshape(x.shape)


def _float8(x: Tensor, scale: Tensor) -> Tensor:
    return (x / scale).clamp_(-float8.LARGEST, float8.LARGEST).to(torch.float8_e4m3fn).float().mul_(scale)
