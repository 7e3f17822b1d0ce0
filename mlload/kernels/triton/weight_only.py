"""Quantized weights with 16-bit activations: y = x W^T, weights unpacked in registers.

    x [M, K] bf16 or f16, y [M, N]; w int16 [N/64, K/BK, 64, P] (`planes`); s [K/BK, N, BK/G] scales in STEP, a float
    dtype, read as integers of 32 or 64 bits that hold all scales of a row in a tile ([K/G, N] where G >= BK);
    z uint8 [K/G, N] zero points; global_scale float32 [N], nvfp4's; with experts, w, s, z, global_scale and the bias
    have a leading E, and rows are routed (`moe`)
    WORDS: STEP is int32, float32 scales whose lowest byte is the zero point, and z is not read. Four bytes and more are
    copied to shared memory ahead of time; fewer go through registers, and wait for each other there
    CODE "float": w is [N, K] in the activations' dtype and has no scales (experts that are not quantized)
The weight is the left operand, acc[BN, BM] = W x^T: Hopper reads it from registers, and M is not padded to 64.
Scales multiply the accumulator, once per group: the codes stay exact in 16 bits, and all rounding is fp32's.
Deterministic: each output is summed by one program, or by `splits` of them into a workspace that `reduce_splits`
adds up in order.
Idea: Marlin's layout made once for the kernel, with the operands exchanged as in Machete.
Reference: `packed.unpack_linear`; conditions: `gpu_conditions.weight_only`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mlload.kernels.triton.decode import decode_words


@triton.jit
def weight_only_gemm(
    x,
    w,
    s,
    z,
    bias,
    y,
    rows,
    experts,
    global_scale,
    M,
    N,
    K,
    x_stride,
    k_tiles,
    n_rows,
    tiles_per_split,
    top_k,
    CODE: tl.constexpr,
    DTYPE: tl.constexpr,
    STEP: tl.constexpr,
    ZERO: tl.constexpr,
    WORDS: tl.constexpr,
    BIAS: tl.constexpr,
    ROUTED: tl.constexpr,
    GLOBAL: tl.constexpr,
    EVEN_K: tl.constexpr,
    SPLIT: tl.constexpr,
    G: tl.constexpr,
    P: tl.constexpr,
    PLANES: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    PTX: tl.constexpr,
):
    """Grid: (blocks of BM rows, N / BN, splits of K).

    rows, experts: where ROUTED, int32 [blocks * BM] slots (token * top_k + choice; M and above: none) and int32
                   [blocks], the expert of a block, -1 for none
    n_rows:        N padded to 64; G = 0: one scale a row
    """
    block, tile_n, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    BK: tl.constexpr = P * PLANES
    PER_GROUP: tl.constexpr = PLANES if G == 0 else (G // P if G // P < PLANES else PLANES)
    PARTS: tl.constexpr = PLANES // PER_GROUP
    on = tile_n * BN + tl.arange(0, BN)
    slot = block * BM + tl.arange(0, BM)
    if ROUTED:
        expert = tl.load(experts + block).to(tl.int64)
        if expert < 0:
            return
        slot = tl.load(rows + slot)
        row = tl.minimum(slot, M - 1) // top_k
        if CODE == "float":
            w += expert * N * K
        else:
            groups = 1 if G == 0 else tl.cdiv(k_tiles * BK, G)
            w += expert * (n_rows // 64) * k_tiles * (64 * P)
            s += expert * (groups // PARTS * integers_of(PARTS, STEP)) * n_rows
            z += expert * groups * n_rows
        bias += expert * N
        global_scale += expert * n_rows
    else:
        row = tl.minimum(slot, M - 1)
    # What lies beyond the matrices reads their last row again and is not stored: loads need no masks.
    live = slot < M
    on_read = tl.minimum(on, n_rows - 1)
    if CODE == "float":
        offset_w = on_read.to(tl.int64)[:, None] * K + tl.arange(0, P)[None, :]
    else:
        offset_w = ((on_read // 64) * k_tiles * (64 * P) + (on_read % 64) * P)[:, None] + tl.arange(0, P)[None, :]
    offset_x = row.to(tl.int64)[None, :] * x_stride + tl.arange(0, P)[:, None]
    first = split * tiles_per_split
    last = tl.minimum(first + tiles_per_split, k_tiles)
    acc = tl.zeros((BN, BM), tl.float32)
    row_zero = on
    if WORDS and G == 0:
        row_zero = tl.load(s + on_read)
    elif ZERO and G == 0:
        row_zero = tl.load(z + on_read)
    for tile in range(first, last):
        if CODE == "float":
            inside_k = tile * BK + tl.arange(0, P) < K
            q = tl.load(w + tile * P + offset_w, mask=inside_k[None, :], other=0.0)
        else:
            q = tl.load(w + tile * (64 * P) + offset_w).to(tl.uint16, bitcast=True)
        if G != 0:
            lower, upper = load_steps(s, group_of(tile, 0, BK, G) // PARTS * n_rows + on_read, PARTS, STEP)
        for part in tl.static_range(PARTS):
            zero = row_zero
            if G != 0:
                step = step_of(lower, upper, part, PARTS, STEP)
                if WORDS:
                    zero = step
                elif ZERO:
                    zero = tl.load(z + group_of(tile, part, BK, G) * n_rows + on_read)
            if CODE == "float":  # noqa: SIM108
                planes = (q,)
            else:
                planes = decode_words(q, zero, CODE, ZERO, DTYPE, PTX)
            if G != 0:
                group = tl.zeros((BN, BM), tl.float32)
            for i in tl.static_range(PER_GROUP):
                at = tile * BK + (part * PER_GROUP + i) * P
                if EVEN_K:
                    columns = tl.load(x + at + offset_x)
                else:
                    columns = tl.load(x + at + offset_x, mask=(at + tl.arange(0, P) < K)[:, None], other=0.0)
                if G == 0:
                    acc = tl.dot(planes[part * PER_GROUP + i], columns, acc)
                else:
                    group = tl.dot(planes[part * PER_GROUP + i], columns, group)
            if G != 0:
                acc += group * (scale_of(step) if WORDS else step.to(tl.float32))[:, None]
    if WORDS and G == 0:
        acc *= scale_of(row_zero)[:, None]
    elif G == 0 and CODE != "float":
        acc *= tl.load(s + on_read).to(tl.float32)[:, None]
    if GLOBAL:
        acc *= tl.load(global_scale + on_read)[:, None]
    inside = live[None, :] & (on < N)[:, None]
    if SPLIT:
        target = y + (split.to(tl.int64) * M + slot[None, :]) * N + on[:, None]
        tl.store(target, acc, mask=inside)
    else:
        if BIAS:
            acc += tl.load(bias + on, mask=on < N, other=0.0).to(tl.float32)[:, None]
        target = y + slot.to(tl.int64)[None, :] * N + on[:, None]
        tl.store(target, acc.to(y.dtype.element_ty), mask=inside)


@triton.constexpr_function
def integers_of(parts: int, step: tl.dtype) -> int:
    """Of 64 bits or fewer, that hold the scales of a row in a tile."""
    return -(-parts * int(step.primitive_bitwidth) // 64)


@triton.jit
def group_of(tile, part: tl.constexpr, BK: tl.constexpr, G: tl.constexpr):
    if G > BK:
        return tile * BK // G
    else:
        return tile * (BK // G) + part


@triton.jit
def load_steps(s, at, PARTS: tl.constexpr, STEP: tl.constexpr):
    """Scales of rows in a tile: their first 64 bits and the next, the same where there are no more."""
    if integers_of(PARTS, STEP) == 2:
        return tl.load(s + 2 * at), tl.load(s + 2 * at + 1)
    else:
        first = tl.load(s + at)
        return first, first


@triton.jit
def step_of(lower, upper, part: tl.constexpr, PARTS: tl.constexpr, STEP: tl.constexpr):
    BITS: tl.constexpr = STEP.primitive_bitwidth
    if PARTS == 1:
        return lower
    else:
        bits = (upper if part * BITS >= 64 else lower) >> (part * BITS % 64)
        if BITS == 32:  # noqa: SIM108
            narrow = bits.to(tl.int32)
        else:
            narrow = bits.to(tl.int16)
        return narrow.to(STEP, bitcast=True)


@triton.jit
def scale_of(words):
    return (words & -256).to(tl.float32, bitcast=True)


@triton.jit
def reduce_splits(parts, bias, y, elements, N, SPLITS: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr):
    """parts float32 [SPLITS, M, N] -> y [M, N], added in order: the same bits every run. Grid: (M * N / BLOCK,)."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < elements
    total = tl.load(parts + at, mask=inside, other=0.0)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(parts + split * elements + at, mask=inside, other=0.0)
    if BIAS:
        total += tl.load(bias + at % N, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + at, total.to(y.dtype.element_ty), mask=inside)


@triton.jit
def dequantize_planes(
    w,
    s,
    z,
    global_scale,
    y,
    N,
    K,
    k_tiles,
    n_rows,
    CODE: tl.constexpr,
    STEP: tl.constexpr,
    ZERO: tl.constexpr,
    WORDS: tl.constexpr,
    GLOBAL: tl.constexpr,
    G: tl.constexpr,
    P: tl.constexpr,
    PLANES: tl.constexpr,
    DTYPE: tl.constexpr,
    PTX: tl.constexpr,
):
    """The packed weight as y [N, K] in DTYPE, for GEMMs of many rows. Grid: (N / 64, k_tiles)."""
    tile_n, tile = tl.program_id(0), tl.program_id(1)
    BK: tl.constexpr = P * PLANES
    on = tile_n * 64 + tl.arange(0, 64)
    offset = (tile_n.to(tl.int64) * k_tiles + tile) * (64 * P)
    inner = tl.arange(0, 64)[:, None] * P + tl.arange(0, P)[None, :]
    q = tl.load(w + offset + inner).to(tl.uint16, bitcast=True)
    PER_GROUP: tl.constexpr = PLANES if G == 0 else (G // P if G // P < PLANES else PLANES)
    PARTS: tl.constexpr = PLANES // PER_GROUP
    group = 0 if G == 0 else group_of(tile, 0, BK, G)
    lower, upper = load_steps(s, group // PARTS * n_rows + on, PARTS, STEP)
    for part in tl.static_range(PARTS):
        zero = on
        raw = step_of(lower, upper, part, PARTS, STEP)
        if WORDS:
            zero = raw
            scale = scale_of(raw)
        else:
            scale = raw.to(tl.float32)
            if ZERO:
                zero = tl.load(z + (group + part) * n_rows + on)
        planes = decode_words(q, zero, CODE, ZERO, DTYPE, PTX)
        if GLOBAL:
            scale *= tl.load(global_scale + on)
        for i in tl.static_range(PER_GROUP):
            ok = tile * BK + (part * PER_GROUP + i) * P + tl.arange(0, P)
            value = planes[part * PER_GROUP + i].to(tl.float32) * scale[:, None]
            inside = (on < N)[:, None] & (ok < K)[None, :]
            tl.store(y + on.to(tl.int64)[:, None] * K + ok[None, :], value.to(DTYPE), mask=inside)
