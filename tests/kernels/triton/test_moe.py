"""Fused experts in the interpreter.

Each GEMM alone is held to the bounds of the dense kernels. The whole is held to rounding of what lies between its
parts: gate_up and the activation are rounded to 16 bits (h = 2**-8 or 2**-11), and what an error e in them can do to
the output is bounded by the magnitudes that follow: |down| |d act| e.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlload.kernels.cpu.fp8 import quantize_groups
from mlload.kernels.cpu.int8 import quantize_rows
from mlload.kernels.triton import moe
from mlload.kernels.triton.routing import align, most_blocks
from mlload.quant.spec import Scheme
from tests.kernels import linears

UNIT = 2.0**-24
T, TOP_K, E, H, INNER = 7, 2, 4, 128, 64

SCHEMES = [
    (None, "float"),
    (linears.grouped("gptq", group=32), "int4"),
    (linears.grouped("awq", group=64, symmetric=False), "int4"),
    (linears.grouped("gptq", group=64, symmetric=False, act_order=True), "act-order"),
    (linears.FP8_BLOCK, "fp8"),
    (linears.MXFP4, "mxfp4"),
    (linears.NVFP4, "nvfp4"),
    (linears.FP8_CHANNEL, "fp8"),
    (linears.INT8, "int8"),
    (linears.grouped("gptq", bits=8, group=64, symmetric=False), "int8 weights"),
]
LARGE = linears.grouped("gptq", group=256, symmetric=False)
IDS = [f"{name}-{scheme.group_size if scheme else ''}" for scheme, name in SCHEMES]
# Whose activations keep their 16 bits.
SIXTEEN_BITS = [
    pytest.param(*pair, id=title) for pair, title in zip(SCHEMES, IDS, strict=True) if pair[1] not in ("fp8", "int8")
]


def weights(scheme: Scheme | None, n: int, k: int, dtype: torch.dtype, *, bias: bool = False) -> moe.Experts:
    experts = []
    for e in range(E):
        generator = torch.Generator().manual_seed(100 + e)
        if scheme is None:
            tensors = {"weight": torch.randn(n, k, generator=generator) * 0.05}
        elif scheme is linears.INT8:
            tensors = linears.int8(n, k, seed=e).tensors
        elif scheme.kind == "int":
            tensors = linears.integer(scheme, n, k, seed=e).tensors
        else:
            tensors = (linears.fp8 if scheme.bits == 8 else linears.fp4)(scheme, n, k, seed=e).tensors
            if scheme.bits == 8:
                name = "weight_scale_inv" if scheme.block else "weight_scale"
                tensors[name] = tensors[name] * 0.1
            elif "weight_scale" in tensors and scheme.kind == "mx":
                tensors["weight_scale"] = tensors["weight_scale"] - 6
        if bias:
            tensors["bias"] = torch.randn(n, generator=generator)
        experts.append(tensors)
    return moe.stack(scheme, experts, n, k, dtype)


def routed(tokens: int = T, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(E, generator=generator)[:TOP_K] for _ in range(tokens)])
    return torch.rand(tokens, TOP_K, generator=generator), ids


def test_blocks_share_an_expert_and_hold_every_slot_once() -> None:
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(-1, E, (T, TOP_K), generator=generator)
        rows, experts = align(ids, E, 4)
        assert experts.shape[0] == most_blocks(T * TOP_K, E, 4) and rows.shape[0] == 4 * experts.shape[0]
        held = []
        for block, expert in zip(rows.reshape(-1, 4).tolist(), experts.tolist(), strict=True):
            slots = [slot for slot in block if slot < T * TOP_K]
            assert bool(slots) == (expert >= 0)
            assert all(ids.flatten()[slot] == expert for slot in slots)
            held += slots
        assert sorted(held) == [slot for slot, e in enumerate(ids.flatten().tolist()) if e >= 0]


def test_the_most_blocks_are_enough_for_the_worst_routing() -> None:
    """One slot over a full block for every expert."""
    ids = torch.tensor([e for e in range(E) for _ in range(5)]).reshape(-1, 1)
    assert (align(ids, E, 4).experts >= 0).sum() == 8 <= most_blocks(20, E, 4)


@pytest.mark.parametrize(("scheme", "name"), SCHEMES, ids=IDS)
@pytest.mark.parametrize("top_k", [TOP_K, 1], ids=["spread", "own"])
def test_the_grouped_gemm(scheme: Scheme | None, name: str, top_k: int) -> None:
    dtype = torch.bfloat16
    experts = weights(scheme, 72, H, dtype, bias=True)
    _, ids = routed()
    x = torch.randn(T if top_k > 1 else T * TOP_K, H, generator=torch.Generator().manual_seed(1)).to(dtype)
    y = moe.grouped(x, experts, align(ids, E, 16), T * TOP_K, top_k, 16)
    weight, bias = moe.dequantized(experts).double(), experts.tensors["bias"].double()
    if name in ("fp8", "int8"):
        q, scale = quantize_rows(x) if name == "int8" else quantize_groups(x, 128)
        x = q.double() * scale.double()
    for slot, expert in enumerate(ids.flatten().tolist()):
        row = x[slot // top_k].double()
        exact = weight[expert] @ row + bias[expert]
        sizes = weight[expert].abs() @ row.abs() + bias[expert].abs()
        # The global scale of nvfp4 and the reference's own fp32 product add two roundings.
        assert ((y[slot].double() - exact).abs() <= (H + 6) * UNIT * sizes + 2**-8 * 1.001 * exact.abs()).all()


def test_shares_of_act_order_experts_whose_groups_are_not_whole() -> None:
    """Rank 1 of 2 holds half of the rows of each expert, some of every group, another number of each."""
    scheme = linears.grouped("gptq", group=64, symmetric=False, act_order=True)
    made = [linears.integer(scheme, 72, 256, seed=e) for e in range(E)]
    shares = [
        {**linear.tensors, "qweight": linear.tensors["qweight"][16:], "g_idx": linear.tensors["g_idx"][128:]}
        for linear in made
    ]
    experts = moe.stack(scheme, shares, 72, 128, torch.bfloat16)
    assert experts.spec is not None and experts.spec.group == 32
    weight = torch.stack([linear.weight[:, 128:] for linear in made])
    torch.testing.assert_close(moe.dequantized(experts).double(), weight, rtol=UNIT, atol=0)
    _, ids = routed()
    ids[2, 1] = -1
    x = torch.randn(T, 128, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    y = moe.grouped(x, experts, align(ids, E, 16), T * TOP_K, TOP_K, 16)
    columns = experts.tensors["order"].shape[1]
    for slot, expert in enumerate(ids.flatten().tolist()):
        if expert < 0:
            continue
        row = x[slot // TOP_K].double()
        exact, sizes = weight[expert] @ row, weight[expert].abs() @ row.abs()
        assert ((y[slot].double() - exact).abs() <= (columns + 6) * UNIT * sizes + 2**-8 * 1.001 * exact.abs()).all()


def test_groups_of_more_than_a_tile() -> None:
    """Of 384 columns the second group of 256 holds the last 128: two rows of scales for three tiles, of each expert."""
    experts = weights(LARGE, 72, 384, torch.bfloat16)
    _, ids = routed()
    x = torch.randn(T, 384, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    y = moe.grouped(x, experts, align(ids, E, 16), T * TOP_K, TOP_K, 16)
    weight = moe.dequantized(experts).double()
    for slot, expert in enumerate(ids.flatten().tolist()):
        row = x[slot // TOP_K].double()
        exact, sizes = weight[expert] @ row, weight[expert].abs() @ row.abs()
        assert ((y[slot].double() - exact).abs() <= 390 * UNIT * sizes + 2**-8 * 1.001 * exact.abs()).all()


@pytest.mark.parametrize(("scheme", "name"), SIXTEEN_BITS)
@pytest.mark.parametrize("activation", ["silu", "swiglu_oai"])
def test_the_whole(scheme: Scheme | None, name: str, activation: str) -> None:
    dtype, half = torch.float16, 2.0**-11
    bias = activation == "swiglu_oai"
    gate_up, down = weights(scheme, 2 * INNER, H, dtype, bias=bias), weights(scheme, H, INNER, dtype, bias=bias)
    shares, ids = routed()
    x = torch.randn(T, H, generator=torch.Generator().manual_seed(2)).to(dtype) * 0.5
    y = moe.fused_moe(x, gate_up, down, shares, ids, activation=activation)
    exact = moe.reference(x, gate_up, down, shares, ids, activation=activation)
    first, second = moe.dequantized(gate_up).double(), moe.dequantized(down).double()
    allowed = torch.zeros_like(exact)
    for token in range(T):
        row = x[token].double()
        for expert, share in zip(ids[token].tolist(), shares[token].double(), strict=True):
            both = first[expert] @ row + (gate_up.tensors["bias"][expert].double() if bias else 0.0)
            wrong = (H + 6) * UNIT * (first[expert].abs() @ row.abs()) + half * both.abs()
            gate, up = (both[0::2], both[1::2]) if bias else both.chunk(2)
            d_gate, d_up = (wrong[0::2], wrong[1::2]) if bias else wrong.chunk(2)
            # |d (g sigmoid(a g))| <= 1.1 |d g|, |g sigmoid(a g)| <= |g|, and the other factor is up or up + 1.
            middle = moe.activation_reference(both, activation)
            error = 1.1 * d_gate * (up.abs() + 1 + d_up) + gate.abs() * d_up + 2 * half * middle.abs()
            out = second[expert] @ middle + (down.tensors["bias"][expert].double() if bias else 0.0)
            allowed[token] += share * (second[expert].abs() @ (error + 2.0**-24) + half * out.abs())
    allowed += half * exact.abs()
    assert ((y.double() - exact).abs() <= allowed).all()
    assert (exact.abs() > 4 * allowed).float().mean() > 0.25, "the bound must mean something"


def test_fp8_experts_are_their_parts() -> None:
    """Rounding to fp8 in between leaves no useful bound for the whole; each part has its own test."""
    gate_up = weights(linears.FP8_BLOCK, 2 * INNER, H, torch.bfloat16)
    down = weights(linears.FP8_BLOCK, H, INNER, torch.bfloat16)
    shares, ids = routed()
    x = torch.randn(T, H, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    routing = align(ids, E, 16)
    middle = moe.activate(moe.grouped(x, gate_up, routing, T * TOP_K, TOP_K, 16), "silu")
    out = moe.grouped(middle, down, routing, T * TOP_K, 1, 16).reshape(T, TOP_K, H).double()
    exact = (out * shares.double()[..., None]).sum(1)
    y = moe.fused_moe(x, gate_up, down, shares, ids).double()
    sizes = (out.abs() * shares.double()[..., None]).sum(1)
    assert ((y - exact).abs() <= 2**-8 * exact.abs() + 2 * TOP_K * UNIT * sizes).all()


def test_experts_of_other_ranks_are_left_out() -> None:
    gate_up, down = weights(None, 2 * INNER, H, torch.float16), weights(None, H, INNER, torch.float16)
    shares, ids = routed()
    x = torch.randn(T, H).to(torch.float16)
    here = torch.where(ids == 1, -1, ids)
    parts = [moe.fused_moe(x, gate_up, down, shares, which).double() for which in (here, torch.where(ids == 1, 1, -1))]
    whole = moe.fused_moe(x, gate_up, down, shares, ids).double()
    assert parts[0].isfinite().all() and parts[1][~(ids == 1).any(1)].eq(0).all()
    torch.testing.assert_close(parts[0] + parts[1], whole, rtol=2**-10, atol=2**-10)


def test_the_same_bits_whatever_else_is_in_the_batch() -> None:
    gate_up, down = weights(None, 2 * INNER, H, torch.bfloat16), weights(None, H, INNER, torch.bfloat16)
    shares, ids = routed()
    x = torch.randn(T, H).to(torch.bfloat16)
    whole = moe.fused_moe(x, gate_up, down, shares, ids)
    assert torch.equal(moe.fused_moe(x[:3], gate_up, down, shares[:3], ids[:3]), whole[:3])


def test_the_clamped_activation_by_hand() -> None:
    """Gate 10 is cut to 7 and up -9 to -7; sigmoid(1.702 * 7) is 0.99999331."""
    both = torch.tensor([[10.0, -9.0, -1.0, 2.0]], dtype=torch.float32)
    found = moe.activate(both, "swiglu_oai")[0]
    assert found[0].item() == pytest.approx(7 * 0.99999331 * -6, rel=1e-6)
    assert found[1].item() == pytest.approx(-1 * 0.154204 * 3, rel=1e-5)
    assert moe.activate(both, "silu")[0, 0].item() == pytest.approx(10 * 0.9999546 * -1, rel=1e-5)


def test_nan_stays_in_its_token() -> None:
    gate_up, down = weights(None, 2 * INNER, H, torch.bfloat16), weights(None, H, INNER, torch.bfloat16)
    shares, ids = routed()
    x = torch.randn(T, H).to(torch.bfloat16)
    x[2, 3] = torch.nan
    y = moe.fused_moe(x, gate_up, down, shares, ids, activation="swiglu_oai")
    assert y[2].isnan().all() and y[torch.arange(T) != 2].isfinite().all()
