"""Device code of `quantize`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def quantize_activations(
    x,
    q,
    scale,
    M,
    K,
    x_stride,
    G,
    STATIC: tl.constexpr,
    INT8: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid: (M, groups). G values a group, in steps of BLOCK; scale is stored [groups, M]."""
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
        tl.store(scale + group * M + row, step)
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
