"""The floats that packed weights stand for, made with torch's vectorized operators where a family has them.

A layer without a kernel of its own dequantizes for every product, so this is what its decode speed is made of. Tables
turn several codes at once into floats: a pair of 4-bit floats is one 64-bit word of a table of 256. All values are the
same as those of the formats' own readers (`stored.dequantized`), bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import torch
from torch import Tensor

from mlload.kernels.families import family
from mlload.kernels.stored import dequantized, e8m0, elements, integers
from mlload.quant.spec import Scheme

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def values(scheme: Scheme, tensors: Mapping[str, Tensor], n: int, k: int) -> Tensor:
    """float32 [N, K] of any readable scheme."""
    kind = family(scheme)
    if kind in ("mxfp4", "nvfp4"):
        return _four_bit_floats(scheme, tensors, n, k)
    if kind in ("w4a16", "w8a16"):
        found = _integers(scheme, tensors, n, k)
        if found is not None:
            return found
    return dequantized(scheme, tensors, n, k)


def _four_bit_floats(scheme: Scheme, tensors: Mapping[str, Tensor], n: int, k: int) -> Tensor:
    parts = elements(scheme, tensors, n, k)
    if scheme.kind == "mx":
        step = e8m0(parts.scale)
    else:
        assert parts.global_scale is not None
        step = parts.scale.float() * parts.global_scale.reshape(-1, 1)
    wide = _pairs(parts.codes.device).index_select(0, parts.codes.reshape(-1).int())
    return (wide.view(torch.float32).reshape(n, -1, scheme.group_size or 32) * step.reshape(n, -1, 1)).reshape(n, k)


def _integers(scheme: Scheme, tensors: Mapping[str, Tensor], n: int, k: int) -> Tensor | None:
    """None where the last group is short."""
    parts = integers(scheme, tensors, n, k)
    scale = parts.scale.float()
    zero = float(1 << (scheme.bits - 1)) if parts.zero is None else parts.zero.float()
    if parts.g_idx is not None:
        spread = zero[:, parts.g_idx] if isinstance(zero, Tensor) else zero
        return (parts.codes.float() - spread) * scale[:, parts.g_idx]
    groups = scale.shape[1]
    size = scheme.group_size or -1
    if parts.codes.shape != (n, k) or k % groups or (size > 0 and groups * size != k):
        return None
    codes = parts.codes.reshape(n, groups, -1).float()
    return ((codes - (zero[..., None] if isinstance(zero, Tensor) else zero)) * scale[..., None]).reshape(n, k)


def fp8_values(codes: Tensor) -> Tensor:
    """float32 of e4m3 codes; torch's own conversion is five times slower on a CPU."""
    if codes.device.type != "cpu":
        return codes.float()
    return _e4m3().index_select(0, codes.view(torch.uint8).reshape(-1).int()).reshape(codes.shape)


@lru_cache(maxsize=1)
def _e4m3() -> Tensor:
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()


@lru_cache(maxsize=8)
def _pairs(device: torch.device) -> Tensor:
    """int64 [256]: the two floats of each byte, the low nibble first."""
    one = torch.tensor(E2M1, device=device)
    return torch.stack([one.repeat(16), one.repeat_interleave(16)], -1).view(torch.int64).reshape(-1)
