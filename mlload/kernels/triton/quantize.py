"""Activations to 8 bits, fused: largest magnitude, scale, rounding, one read of x.

    x [M, K] 16 or 32-bit float -> q e4m3 or int8 [M, K], scale float32 [M, ceil(K/G)] (G = K: one a row),
    held column by column, as a GEMM reads it
    q = x / scale with scale = largest / 448 (e4m3) or / 127 (int8), to nearest even, saturating
A group of zeros has scale 0 and codes 0. A NaN makes its group's scale NaN, so that it reaches every output that the
group reaches. With a static scale x is only divided by it.
Idea: a scale for each token's 128 values, of DeepSeek-V3; one program a row or a few groups.
Reference: `cpu.fp8.quantize_groups`, `cpu.int8.quantize_rows`.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from mlload.kernels.triton.quantize_device import quantize_activations


def quantize(x: Tensor, group: int, *, static: Tensor | None = None, int8: bool = False) -> tuple[Tensor, Tensor]:
    """x [M, K] -> (q [M, K], scale float32 [M, ceil(K/group)], or the static one as it is)."""
    m, k = x.shape
    x = x if x.stride(-1) == 1 else x.contiguous()
    groups = triton.cdiv(k, group)
    q = torch.empty(m, k, dtype=torch.int8 if int8 else torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(groups, m, dtype=torch.float32, device=x.device).T if static is None else static
    block = min(triton.next_power_of_2(group), 4096)
    if m:
        quantize_activations[(m, groups)](
            x,
            q,
            scale,
            m,
            k,
            x.stride(0),
            group,
            STATIC=static is not None,
            INT8=int8,
            BLOCK=block,
            num_warps=1 if block <= 128 else 4,
        )
    return q, scale
