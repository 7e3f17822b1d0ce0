"""Device code of `moe`."""

from __future__ import annotations

import triton
import triton.language as tl


def grouped_warps(code: str, block: int, capability: int, group: int) -> int:
    """With 64 rows four warps spill where groups have 32 values or fewer, and before Hopper (capability 90) whatever is
    unpacked. group: -1 for one scale a row."""
    return 8 if block >= 64 and (code == "e2m1" or capability < 90 or 0 < group <= 32) else 4


@triton.jit
def permute_columns(x, order, rows, experts, y, slots, x_stride, width, top_k, BM: tl.constexpr, BLOCK: tl.constexpr):
    """y[slot] [slots, width] = x[slot // top_k] with its columns in the order of the slot's expert, order [E, width].

    Grid: (blocks of BM slots of one expert, ceil(width / BLOCK)); rows, experts: as `routing` has them."""
    block, at = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    expert = tl.load(experts + block).to(tl.int64)
    if expert < 0:
        return
    inside = at < width
    column = tl.load(order + expert * width + at, mask=inside, other=0)
    for i in range(BM):
        slot = tl.load(rows + block * BM + i).to(tl.int64)
        if slot < slots:
            value = tl.load(x + slot // top_k * x_stride + column, mask=inside, other=0.0)
            tl.store(y + slot * width + at, value, mask=inside)


@triton.jit
def activate_pairs(both, y, inner, limit, OAI: tl.constexpr, BLOCK: tl.constexpr):
    """both [rows, 2I] -> y [rows, I], inner = I. Grid: (rows, ceil(I / BLOCK))."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < inner
    if OAI:
        gate = tl.load(both + row * 2 * inner + 2 * at, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(both + row * 2 * inner + 2 * at + 1, mask=inside, other=0.0).to(tl.float32)
        # Comparisons, so that NaN passes.
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
        value = gate * tl.sigmoid(1.702 * gate) * (up + 1)
    else:
        gate = tl.load(both + row * 2 * inner + at, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(both + row * 2 * inner + inner + at, mask=inside, other=0.0).to(tl.float32)
        value = gate * tl.sigmoid(gate) * up
    tl.store(y + row * inner + at, value.to(y.dtype.element_ty), mask=inside)


@triton.jit
def combine_choices(out, weights, ids, y, H, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """y[t] = sum of weights[t, j] * out[t * TOP_K + j] in order of j. Grid: (T, ceil(H / BLOCK))."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for j in tl.static_range(TOP_K):
        here = tl.load(ids + token * TOP_K + j) >= 0
        weight = tl.load(weights + token * TOP_K + j).to(tl.float32)
        value = tl.load(out + (token * TOP_K + j) * H + at, mask=at < H, other=0.0).to(tl.float32)
        total += tl.where(here, weight * value, 0.0)
    tl.store(y + token * H + at, total.to(y.dtype.element_ty), mask=at < H)
