"""8-bit weights and activations: y = (W q) (scales), e4m3 or int8, on the 8-bit tensor cores.

    q [M, K] e4m3 or int8, qs float32 [M, K/128] (block), [M] (row) or [1]
    w [N, K] as stored, ws float32 [ceil(N/128), ceil(K/128)] (block) or [N]
Blocks: a fresh accumulator per 128 of K, multiplied by both scales and added in fp32. That also bounds what Hopper
loses: its fp8 tensor cores keep about 14 bits while they add, here over 128 terms and never more
(`max_num_imprecise_acc`).
The weight is the left operand, so that few rows need no padding to 64. With experts w and ws have a leading E.
Idea: DeepSeek-V3's blockwise GEMM and its promotion of partial sums.
Reference: `cpu.fp8`, `cpu.int8`; conditions: `gpu_conditions.fp8` and `int8`.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from mlload.kernels.triton import configs, launch
from mlload.kernels.triton.w8a8_device import BY_ROWS, w8a8_gemm
from mlload.kernels.triton.weight_only import reduce_splits


def choose(m: int, n: int, k_tiles: int, multiprocessors: int = configs.MULTIPROCESSORS) -> configs.Config:
    config = next(config for rows, config in BY_ROWS if m <= rows)
    tiles = -(-n // config.block_n) * -(-m // config.block_m)
    splits = min(multiprocessors // max(tiles, 1), configs.MOST_SPLITS, k_tiles // configs.LEAST_TILES)
    return config._replace(splits=max(1, splits))


def matmul(
    q: Tensor,
    qs: Tensor,
    w: Tensor,
    ws: Tensor,
    dtype: torch.dtype,
    bias: Tensor | None = None,
    *,
    config: configs.Config | None = None,
) -> Tensor:
    """(q, qs) from `quantize` times w [N, K] with its scales -> [M, N] in `dtype`."""
    (m, k), n = q.shape, w.shape[0]
    k_tiles = triton.cdiv(k, 128)
    config = choose(m, n, k_tiles) if config is None else config
    y = torch.empty(m, n, dtype=dtype, device=q.device)
    if not m:
        return y
    per_split = triton.cdiv(k_tiles, config.splits)
    splits = triton.cdiv(k_tiles, per_split)
    target = y if splits == 1 else torch.empty(splits, m, n, dtype=torch.float32, device=q.device)
    w8a8_gemm[(triton.cdiv(m, config.block_m), triton.cdiv(n, config.block_n), splits)](
        q,
        qs,
        w,
        ws,
        qs if bias is None else bias,
        target,
        qs,
        qs,
        m,
        n,
        k,
        qs.stride(0) if qs.dim() == 2 else 0,
        qs.stride(1) if qs.dim() == 2 else 0,
        k_tiles,
        per_split,
        1,
        BLOCKED=ws.dim() == 2,
        INT8=q.dtype == torch.int8,
        BIAS=bias is not None and splits == 1,
        ROUTED=False,
        EVEN_K=k % 128 == 0,
        SPLIT=splits > 1,
        BN=config.block_n,
        BM=config.block_m,
        num_warps=launch.warps(config, q, 128, fp8=True),
        num_stages=config.stages,
        enable_fp_fusion=True,
    )
    if splits > 1:
        reduce_splits[(triton.cdiv(m * n, 1024),)](
            target, qs if bias is None else bias, y, m * n, n, SPLITS=splits, BIAS=bias is not None, BLOCK=1024
        )
    return y
