"""Keys and values into an fp8 cache: scaled, rounded to e4m3 and stored at their slots, in one kernel.

    k, v [T, H, D] 16-bit; cache_k, cache_v uint8 or e4m3 [blocks, B, H, D] (B tokens a block); slots int64 [T]
    (block * B + place, negative: a padded token that is not stored); scale_k, scale_v float32 [1] or [H]
Stored is x / scale, saturating at 448; attention multiplies by the scale again. GPUs before 8.9 have no conversion and
get the bits by integer arithmetic, the same ones.
Idea: vLLM's reshape_and_cache, whose slots these are. Reference: `reference`.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from mlload.kernels.triton.kv_cache_device import store_fp8


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
