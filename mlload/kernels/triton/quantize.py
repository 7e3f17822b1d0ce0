"""Activations to 8 bits, fused: largest magnitude, scale, rounding, one read of x.

    x [M, K] 16 or 32-bit float -> q e4m3 or int8 [M, K], scale float32 [M, ceil(K/G)] (G = K: one a row)
    q = x / scale with scale = largest / 448 (e4m3) or / 127 (int8), to nearest even, saturating
A group of zeros has scale 0 and codes 0. A NaN makes its group's scale NaN, so that it reaches every output that the
group reaches. With a static scale x is only divided by it.
Reference: `cpu.fp8.quantize_groups`, `cpu.int8.quantize_rows`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def quantize_activations(
    x,
    q,
    scale,
    K,
    x_stride,
    groups,
    G,
    STATIC: tl.constexpr,
    INT8: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid: (M, groups). G values a group, in steps of BLOCK."""
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start = group * G
    top: tl.constexpr = 127.0 if INT8 else 448.0
    if STATIC:
        step = tl.load(scale)
    else:
        largest = tl.zeros((BLOCK,), tl.float32)
        broken = tl.zeros((BLOCK,), tl.int32)
        for at in range(0, G, BLOCK):
            ok = start + at + tl.arange(0, BLOCK)
            inside = (ok < K) & (at + tl.arange(0, BLOCK) < G)
            value = tl.load(x + row * x_stride + ok, mask=inside, other=0.0).to(tl.float32)
            largest = tl.maximum(largest, tl.abs(value))
            broken = tl.maximum(broken, (value != value).to(tl.int32))
        step = tl.div_rn(tl.max(largest, 0), top)
        # A maximum leaves NaN out on some GPUs and not on others.
        step = tl.where(tl.max(broken, 0) != 0, float("nan"), step)
        tl.store(scale + row * groups + group, step)
    for at in range(0, G, BLOCK):
        ok = start + at + tl.arange(0, BLOCK)
        inside = (ok < K) & (at + tl.arange(0, BLOCK) < G)
        value = tl.load(x + row * x_stride + ok, mask=inside, other=0.0).to(tl.float32)
        value = tl.where(step > 0, tl.div_rn(value, step), 0.0)
        if INT8:
            value = tl.minimum(tl.maximum(value, -128.0), 127.0)
            # Adding 1.5 * 2**23 rounds to an integer, to nearest even.
            code = ((value + 12582912.0) - 12582912.0).to(tl.int8)
            tl.store(q + row * K + ok, code, mask=inside)
        else:
            value = tl.minimum(tl.maximum(value, -448.0), 448.0)
            tl.store(q + row * K + ok, value.to(tl.float8e4nv), mask=inside)


def quantize(x: Tensor, group: int, *, static: Tensor | None = None, int8: bool = False) -> tuple[Tensor, Tensor]:
    """x [M, K] -> (q [M, K], scale float32 [M, ceil(K/group)], or the static one as it is)."""
    m, k = x.shape
    x = x if x.stride(-1) == 1 else x.contiguous()
    groups = triton.cdiv(k, group)
    q = torch.empty(m, k, dtype=torch.int8 if int8 else torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(m, groups, dtype=torch.float32, device=x.device) if static is None else static
    block = min(triton.next_power_of_2(group), 4096)
    if m:
        quantize_activations[(m, groups)](
            x,
            q,
            scale,
            k,
            x.stride(0),
            groups,
            group,
            STATIC=static is not None,
            INT8=int8,
            BLOCK=block,
            num_warps=1 if block <= 128 else 4,
        )
    return q, scale
