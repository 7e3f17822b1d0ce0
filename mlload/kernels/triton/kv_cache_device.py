"""Device code of `kv_cache`."""

from __future__ import annotations

import triton
import triton.language as tl

from mlload.kernels.triton.decode import encode_e4m3


@triton.jit
def store_fp8(
    k,
    v,
    cache_k,
    cache_v,
    slots,
    scale_k,
    scale_v,
    k_stride,
    v_stride,
    width,
    D,
    PER_HEAD: tl.constexpr,
    NATIVE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid: (T, ceil(H * D / BLOCK)). width = H * D."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if slot < 0:
        return
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    if PER_HEAD:
        step_k = tl.load(scale_k + at // D, mask=inside, other=1.0)
        step_v = tl.load(scale_v + at // D, mask=inside, other=1.0)
    else:
        step_k = tl.load(scale_k)
        step_v = tl.load(scale_v)
    key = tl.div_rn(tl.load(k + token * k_stride + at, mask=inside, other=0.0).to(tl.float32), step_k)
    value = tl.div_rn(tl.load(v + token * v_stride + at, mask=inside, other=0.0).to(tl.float32), step_v)
    target = slot.to(tl.int64) * width + at
    tl.store(cache_k + target, _encode(key, NATIVE), mask=inside)
    tl.store(cache_v + target, _encode(value, NATIVE), mask=inside)


@triton.jit
def _encode(value, NATIVE: tl.constexpr):
    if NATIVE:
        # The comparison keeps NaN, which a minimum may drop.
        value = tl.where(value > 448.0, 448.0, tl.where(value < -448.0, -448.0, value))
        return value.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    else:
        return encode_e4m3(value)
