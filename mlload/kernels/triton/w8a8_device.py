"""Device code and tiles of `w8a8`."""

from __future__ import annotations

import triton
import triton.language as tl

from mlload.kernels.triton import configs

# Rows up to -> (BN, BM, warps, stages).
BY_ROWS = (
    (16, configs.Config(64, 16, 4, 5)),
    (1 << 30, configs.Config(128, 64, 4, 4)),
)


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
    qs_row,
    qs_group,
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
            # BN divides 128: one scale for the whole tile of weights.
            scale_w = tl.load(ws + tile_n * BN // 128 * k_tiles + tile)
            scale_q = tl.load(qs + row * qs_row + tile * qs_group, mask=live, other=0.0)
            acc += part * (scale_w * scale_q)[None, :]
        elif INT8:
            acc = tl.dot(left, right, acc, out_dtype=tl.int32)
        else:
            acc = tl.dot(left, right, acc, max_num_imprecise_acc=128)
    if BLOCKED:
        total = acc
    else:
        scale_w = tl.load(ws + on, mask=live_n, other=0.0)
        scale_q = tl.load(qs + row * qs_row, mask=live, other=0.0)
        total = acc.to(tl.float32) * scale_w[:, None] * scale_q[None, :]
    inside = live[None, :] & live_n[:, None]
    if SPLIT:
        tl.store(y + (split.to(tl.int64) * M + slot[None, :]) * N + on[:, None], total, mask=inside)
    else:
        if BIAS:
            total += tl.load(bias + on, mask=live_n, other=0.0).to(tl.float32)[:, None]
        tl.store(y + slot.to(tl.int64)[None, :] * N + on[:, None], total.to(y.dtype.element_ty), mask=inside)
