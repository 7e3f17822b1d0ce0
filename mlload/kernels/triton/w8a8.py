"""8-bit weights and activations: y = (W q) (scales), e4m3 or int8, on the 8-bit tensor cores.

    q [M, K] e4m3 or int8, qs float32 [M, K/128] (block), [M] (row) or [1]
    w [N, K] as stored, ws float32 [ceil(N/128), ceil(K/128)] (block) or [N]
Blocks: a fresh accumulator per 128 of K, multiplied by both scales and added in fp32. That also bounds what Hopper
loses: its fp8 tensor cores keep about 14 bits while they add, here over 128 terms and never more
(`max_num_imprecise_acc`).
The weight is the left operand, so that few rows need no padding to 64. With experts w and ws have a leading E.
Idea: DeepSeek-V3's blockwise GEMM and its promotion of partial sums.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlload.kernels.triton import configs
from mlload.kernels.triton.weight_only import reduce_splits


@triton.jit
def w8a8_gemm(
    q,
    qs,
    w,
    ws,
    bias,
    y,
    rows,
    experts,
    M,
    N,
    K,
    qs_stride,
    k_tiles,
    tiles_per_split,
    top_k,
    BLOCKED: tl.constexpr,
    INT8: tl.constexpr,
    BIAS: tl.constexpr,
    ROUTED: tl.constexpr,
    EVEN_K: tl.constexpr,
    SPLIT: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
):
    """Grid: (blocks of BM rows, N / BN, splits of K). rows, experts: as in `weight_only`."""
    block, tile_n, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    BK: tl.constexpr = 128
    on = tile_n * BN + tl.arange(0, BN)
    slot = block * BM + tl.arange(0, BM)
    if ROUTED:
        expert = tl.load(experts + block).to(tl.int64)
        if expert < 0:
            return
        slot = tl.load(rows + slot)
        row = slot // top_k
        w += expert * N * K
        ws += expert * (tl.cdiv(N, 128) * k_tiles if BLOCKED else N)
        bias += expert * N
    else:
        row = slot
    live = slot < M
    live_n = on < N
    ok = tl.arange(0, BK)
    offset_w = on.to(tl.int64)[:, None] * K + ok[None, :]
    offset_q = row.to(tl.int64)[None, :] * K + ok[:, None]
    first = split * tiles_per_split
    last = tl.minimum(first + tiles_per_split, k_tiles)
    acc = tl.zeros((BN, BM), tl.int32 if INT8 else tl.float32)
    for tile in range(first, last):
        if EVEN_K:
            left = tl.load(w + tile * BK + offset_w, mask=live_n[:, None], other=0.0)
            right = tl.load(q + tile * BK + offset_q, mask=live[None, :], other=0.0)
        else:
            inside = tile * BK + ok < K
            left = tl.load(w + tile * BK + offset_w, mask=live_n[:, None] & inside[None, :], other=0.0)
            right = tl.load(q + tile * BK + offset_q, mask=live[None, :] & inside[:, None], other=0.0)
        if BLOCKED:
            part = tl.dot(left, right, max_num_imprecise_acc=128)
            scale_w = tl.load(ws + (on // 128) * k_tiles + tile, mask=live_n, other=0.0)
            scale_q = tl.load(qs + row * qs_stride + tile, mask=live, other=0.0)
            acc += part * scale_w[:, None] * scale_q[None, :]
        elif INT8:
            acc = tl.dot(left, right, acc, out_dtype=tl.int32)
        else:
            acc = tl.dot(left, right, acc, max_num_imprecise_acc=128)
    if BLOCKED:
        total = acc
    else:
        scale_w = tl.load(ws + on, mask=live_n, other=0.0)
        scale_q = tl.load(qs + row * qs_stride, mask=live, other=0.0)
        total = acc.to(tl.float32) * scale_w[:, None] * scale_q[None, :]
    inside = live[None, :] & live_n[:, None]
    if SPLIT:
        tl.store(y + (split.to(tl.int64) * M + slot[None, :]) * N + on[:, None], total, mask=inside)
    else:
        if BIAS:
            total += tl.load(bias + on, mask=live_n, other=0.0).to(tl.float32)[:, None]
        tl.store(y + slot.to(tl.int64)[None, :] * N + on[:, None], total.to(y.dtype.element_ty), mask=inside)


# Rows up to -> (BN, BM, warps, stages).
BY_ROWS = (
    (16, configs.Config(64, 16, 4, 5)),
    (64, configs.Config(64, 64, 4, 4)),
    (1 << 30, configs.Config(128, 128, 8, 3)),
)


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
        num_warps=config.warps,
        num_stages=config.stages,
    )
    if splits > 1:
        reduce_splits[(triton.cdiv(m * n, 1024),)](
            target, qs if bias is None else bias, y, m * n, n, SPLITS=splits, BIAS=bias is not None, BLOCK=1024
        )
    return y
