"""Experts as layers run them: the fused kernel in the interpreter, expert by expert on the CPU, one meaning."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlload import kernels
from mlload.checkpoint.finding import MlloadError
from mlload.kernels import gpu_conditions
from mlload.kernels.experts import ExpertShape, fused
from mlload.kernels.triton.experts import FusedExperts
from mlload.quant.spec import Scheme
from tests.kernels import linears

E, H, INNER, T, TOP_K = 4, 128, 64, 5, 2


def stored(scheme: Scheme | None, n: int, k: int, *, bias: bool) -> tuple[list[dict[str, Tensor]], Tensor, Tensor]:
    """Tensors by expert, weights float64 [E, n, k] and biases [E, n]."""
    tensors, weights, biases = [], [], []
    for e in range(E):
        generator = torch.Generator().manual_seed(e)
        if scheme is None:
            weight = (torch.randn(n, k, generator=generator) * 0.05).to(torch.bfloat16)
            made = linears.Linear({"weight": weight}, weight.double())
        else:
            made = (linears.integer if scheme.kind == "int" else linears.fp8)(scheme, n, k, seed=e)
        offset = torch.randn(n, generator=generator).to(torch.bfloat16)
        tensors.append({**made.tensors, "bias": offset} if bias else made.tensors)
        weights.append(made.weight)
        biases.append(offset.double() * bias)
    return tensors, torch.stack(weights), torch.stack(biases)


@pytest.mark.parametrize("way", ["cpu", "fused"])
@pytest.mark.parametrize("activation", ["silu", "swiglu_oai"])
@pytest.mark.parametrize("scheme", [None, linears.grouped("gptq", group=32)], ids=["bf16", "w4a16"])
def test_both_ways_mean_the_same(scheme: Scheme | None, activation: str, way: str) -> None:
    shape = ExpertShape(E, H, INNER, activation, limit=2.0)
    bias = activation == "swiglu_oai"
    gate_up, first, offset = stored(scheme, 2 * INNER, H, bias=bias)
    down, second, last = stored(scheme, H, INNER, bias=bias)
    dtype = torch.float32 if way == "cpu" and scheme is not None else torch.bfloat16
    if way == "cpu":
        kernel = kernels.select_experts(scheme, shape, dtype).kernel
    else:
        kernel = FusedExperts(scheme, shape, dtype, False)
    generator = torch.Generator().manual_seed(9)
    x = torch.randn(T, H, generator=generator).to(dtype)
    ids = torch.tensor([[0, 1], [3, -1], [2, 0], [1, 3], [-1, -1]])
    shares = torch.rand(T, TOP_K, generator=generator)
    y = kernel.apply(x, kernel.prepare(gate_up, down), shares, ids)
    exact = torch.zeros(T, H, dtype=torch.float64)
    for t in range(T):
        for e, share in zip(ids[t].tolist(), shares[t].double(), strict=True):
            if e < 0:
                continue
            both = first[e] @ x[t].double() + offset[e]
            if bias:
                gate, up = both[0::2].clamp(max=2.0), both[1::2].clamp(-2.0, 2.0)
                middle = gate * torch.sigmoid(1.702 * gate) * (up + 1)
            else:
                gate, up = both.chunk(2)
                middle = gate * torch.sigmoid(gate) * up
            exact[t] += share * (second[e] @ middle + last[e])
    # Between the products values are rounded to the dtype: some units of the largest output.
    unit = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-20
    assert (y.double() - exact).abs().max() <= 4 * unit * exact.abs().max()
    assert y[4].eq(0).all()


def test_fp8_blocks_without_fp8_instructions() -> None:
    """As planes: the same weights, activations not rounded to fp8."""
    shape = ExpertShape(E, H, INNER)
    gate_up, first, _ = stored(linears.FP8_BLOCK, 2 * INNER, H, bias=False)
    down, second, _ = stored(linears.FP8_BLOCK, H, INNER, bias=False)
    kernel = FusedExperts(linears.FP8_BLOCK, shape, torch.bfloat16, False)
    x = (torch.randn(T, H, generator=torch.Generator().manual_seed(1)) * 0.1).to(torch.bfloat16)
    y = kernel.apply(x, kernel.prepare(gate_up, down), torch.ones(T, 1), torch.arange(T)[:, None] % E)
    for t in range(T):
        gate, up = (first[t % E] @ x[t].double()).chunk(2)
        exact = second[t % E] @ (gate * torch.sigmoid(gate) * up)
        assert (y[t].double() - exact).abs().max() <= 4 * 2.0**-8 * exact.abs().max()


def test_who_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_conditions, "installed", lambda package: package == "triton")
    shape = ExpertShape(8, 2048, 768)
    assert fused(None, shape, "bfloat16", (9, 0)).ok
    assert fused(linears.MXFP4, shape, "bfloat16", (8, 0)).ok
    assert fused(linears.FP8_BLOCK, shape, "bfloat16", (8, 0)).ok
    assert fused(linears.grouped("gptq", act_order=True), shape, "bfloat16", (9, 0)).ok
    assert fused(linears.FP8_CHANNEL, shape, "bfloat16", (9, 0)).ok and fused(linears.INT8, shape, "float16", (8, 0)).ok
    assert "not among" in fused(linears.grouped("gptq", bits=3), shape, "bfloat16", (9, 0)).reason
    ragged = fused(linears.MXFP4, ExpertShape(8, 2048, 752), "bfloat16", (9, 0))
    assert ragged.reason == "K per rank must be a multiple of 32: 752 % 32 = 16"
    chosen = kernels.select_experts(linears.grouped("gptq", group=32), shape, "bfloat16", "cuda", (9, 0))
    assert (chosen.kernel.name, chosen.provider) == ("fused_moe", "mlload")
    with pytest.raises(MlloadError, match="unknown activation"):
        kernels.select_experts(None, ExpertShape(1, 64, 64, "gelu"), "bfloat16")
