"""Keys and values into an fp8 cache: scaled, rounded to e4m3 and stored at their slots, in one kernel.

    k, v [T, H, D] 16-bit; cache_k, cache_v uint8 or e4m3 [blocks, B, H, D] (B tokens a block); slots int64 [T]
    (block * B + place, negative: a padded token that is not stored); scale_k, scale_v float32 [1] or [H]
Stored is x / scale, saturating at 448; attention multiplies by the scale again. GPUs before 8.9 have no conversion and
get the bits by integer arithmetic, the same ones.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

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


def store(
    k: Tensor,
    v: Tensor,
    cache_k: Tensor,
    cache_v: Tensor,
    slots: Tensor,
    scale_k: Tensor,
    scale_v: Tensor,
    *,
    native: bool | None = None,
) -> None:
    """Writes k and v into the caches. `native` is asked of the GPU where it is left out."""
    tokens, heads, dim = k.shape
    if not tokens:
        return
    if native is None:
        native = k.device.type == "cuda" and torch.cuda.get_device_capability(k.device) >= (8, 9)
    k, v = (t if t.stride()[1:] == (dim, 1) else t.contiguous() for t in (k, v))
    width = heads * dim
    block = min(triton.next_power_of_2(width), 1024)
    store_fp8[(tokens, triton.cdiv(width, block))](
        k,
        v,
        cache_k.view(torch.uint8),
        cache_v.view(torch.uint8),
        slots,
        scale_k,
        scale_v,
        k.stride(0),
        v.stride(0),
        width,
        dim,
        PER_HEAD=scale_k.numel() > 1,
        NATIVE=native,
        BLOCK=block,
        num_warps=4,
    )


def reference(x: Tensor, scale: Tensor) -> Tensor:
    """What is stored for x [T, H, D]: e4m3 of x / scale, saturating, NaN kept."""
    return (x.float() / scale.reshape(-1, 1)).clamp(-448, 448).to(torch.float8_e4m3fn)
