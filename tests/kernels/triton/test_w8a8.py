"""Quantize kernels and 8-bit GEMMs in the interpreter.

GEMM bounds, in fp32 with u = 2**-24: products of two e4m3 numbers (4 significant bits each) are exact, a block of 128
sums to within 128 u of its magnitudes, two scales and the sum over blocks add K/128 + 3 roundings: (K + 4) u S. int8
sums are exact; what is left are three roundings of the result.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlload.kernels.cpu.fp8 import quantize_groups
from mlload.kernels.cpu.int8 import quantize_rows
from mlload.kernels.triton import w8a8
from mlload.kernels.triton.configs import Config
from mlload.kernels.triton.quantize import quantize
from mlload.kernels.triton.w8a8_linear import Fp8, Int8, ScaledMM
from tests.kernels import linears

UNIT = 2.0**-24
SMALL = Config(64, 16, 4, 2)


def rows(m: int, k: int, dtype: torch.dtype = torch.bfloat16, seed: int = 5) -> Tensor:
    return (torch.randn(m, k, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)


def special(k: int) -> Tensor:
    """Rows of zeros, of one spike, of the smallest and the largest numbers, with a NaN."""
    x = rows(6, k)
    x[0] = 0
    x[1] = 0
    x[1, 7] = -3e38
    x[2] *= 1e-38
    x[3] = 448
    x[4, 5] = torch.nan
    return x


@pytest.mark.parametrize("k", [64, 128, 200])
@pytest.mark.parametrize("group", [128, 0])
def test_e4m3_as_the_definition_has_it(k: int, group: int) -> None:
    group = group or k
    for x in (rows(3, k), rows(3, k, torch.float16), rows(3, k, torch.float32), special(k)):
        q, scale = quantize(x, group)
        wanted, steps = quantize_groups(x, group)
        assert torch.equal(scale.isnan(), steps.isnan())
        assert torch.equal(scale.nan_to_num(), steps.nan_to_num())
        assert torch.equal(q.view(torch.uint8) & 127, wanted.view(torch.uint8) & 127)
        assert torch.equal(q.float(), wanted.float())


@pytest.mark.parametrize("k", [64, 200])
def test_int8_as_the_definition_has_it(k: int) -> None:
    for x in (rows(3, k), special(k)):
        q, scale = quantize(x, k, int8=True)
        wanted, steps = quantize_rows(x)
        assert torch.equal(scale.isnan(), steps.isnan())
        assert torch.equal(scale.nan_to_num(), steps.nan_to_num())
        assert torch.equal(q, wanted)


def test_static_scales_saturate() -> None:
    x = torch.tensor([[-1e4, -1.0, 0.0, 0.1, 1e4] + [0.0] * 11])
    q, scale = quantize(x, 16, static=torch.tensor([0.5]))
    assert scale.tolist() == [0.5]
    assert q.float()[0, :5].tolist() == [-448.0, -2.0, 0.0, 0.203125, 448.0]
    q, _ = quantize(x, 16, static=torch.tensor([0.5]), int8=True)
    assert q[0, :5].tolist() == [-128, -2, 0, 0, 127]


def test_activations_that_are_not_contiguous() -> None:
    wide = rows(3, 400)
    for x in (wide[:, 8:136], wide[:, ::2]):
        q, scale = quantize(x, 128)
        wanted, steps = quantize_groups(x, 128)
        assert torch.equal(q.float(), wanted.float()) and torch.equal(scale, steps)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 64, 128), (5, 200, 256), (17, 130, 200), (16, 128, 256)])
@pytest.mark.parametrize("splits", [1, 2])
def test_blocks(m: int, n: int, k: int, splits: int) -> None:
    linear = linears.fp8(linears.FP8_BLOCK, n, k)
    kernel = Fp8(linears.FP8_BLOCK, n, k, torch.bfloat16)
    packed = kernel.prepare(linear.tensors)
    q, scale = quantize_groups(rows(m, k), 128)
    y = w8a8.matmul(q, scale, packed["weight"], packed["scale"], torch.float32, config=SMALL._replace(splits=splits))
    x = q.double() * scale.double().repeat_interleave(128, 1)[:, :k]
    sizes = x.abs() @ linear.weight.abs().T
    assert ((y.double() - x @ linear.weight.T).abs() <= (k + 4) * UNIT * sizes).all()


@pytest.mark.parametrize(
    "scheme", [linears.FP8_TENSOR, linears.FP8_CHANNEL, linears.FP8_STATIC], ids=lambda s: s.layout
)
def test_rows_and_channels(scheme: linears.Scheme) -> None:
    n, k = 72, 192
    linear = linears.fp8(scheme, n, k)
    kernel = Fp8(scheme, n, k, torch.bfloat16)
    x, bias = rows(2, k, torch.bfloat16).reshape(2, 1, k), rows(1, n)[0]
    y = kernel.apply(x, kernel.prepare(linear.tensors), bias)
    assert (y.shape, y.dtype) == ((2, 1, n), torch.bfloat16)
    q, scale = quantize_groups(x.reshape(2, k), k, linear.tensors.get("input_scale"))
    wide = q.double() * scale.double()
    exact = wide @ linear.weight.T + bias.double()
    sizes = wide.abs() @ linear.weight.abs().T + bias.double().abs()
    assert ((y.reshape(2, n).double() - exact).abs() <= (k + 4) * UNIT * sizes + 2**-8 * exact.abs()).all()


def test_nan_scales_reach_their_rows() -> None:
    linear = linears.fp8(linears.FP8_BLOCK, 64, 256)
    kernel = Fp8(linears.FP8_BLOCK, 64, 256, torch.bfloat16)
    x = rows(3, 256)
    x[1, 200] = torch.nan
    y = kernel.apply(x, kernel.prepare(linear.tensors))
    assert y[1].isnan().all() and y[[0, 2]].isfinite().all()


@pytest.mark.parametrize("m", [1, 20])
def test_int8(m: int) -> None:
    n, k = 72, 192
    linear = linears.int8(n, k)
    kernel = Int8(linears.INT8, n, k, torch.float16)
    x = (rows(m, k, torch.float16) * 0.01).contiguous()
    y = kernel.apply(x, kernel.prepare(linear.tensors))
    q, scale = quantize(x, k, int8=True)
    exact = (q.double() * scale.double()) @ linear.weight.T
    assert ((y.double() - exact).abs() <= (2**-11 + 4 * UNIT) * exact.abs() + 2.0**-25).all()


def test_scaled_mm_computes_what_our_kernel_does() -> None:
    linear = linears.fp8(linears.FP8_CHANNEL, 64, 128)
    ours, torchs = (cls(linears.FP8_CHANNEL, 64, 128, torch.bfloat16) for cls in (Fp8, ScaledMM))
    x = rows(4, 128)
    first, second = (kernel.apply(x, kernel.prepare(linear.tensors)) for kernel in (ours, torchs))
    torch.testing.assert_close(first, second, rtol=2**-7, atol=1e-4)


def test_fresh_accumulators_bound_what_hopper_loses() -> None:
    """Sums that keep 14 bits, as Hopper's fp8 tensor cores do: promoted every 128 terms the error does not grow with
    K; carried through all of K it does."""

    def lossy(terms: Tensor) -> Tensor:
        total = torch.zeros(terms.shape[0], dtype=torch.float64)
        for chunk in terms.split(32, dim=1):
            total = total + chunk.sum(1)
            mantissa, exponent = torch.frexp(total)
            total = torch.ldexp((mantissa * 2**14).trunc() / 2**14, exponent)
        return total

    generator = torch.Generator().manual_seed(0)
    q = (torch.rand(64, 8192, generator=generator) * 100 + 1).to(torch.float8_e4m3fn).double()
    terms = q * q.flip(0)
    exact = terms.sum(1)
    promoted = sum(lossy(part) for part in terms.split(128, dim=1))
    carried = lossy(terms)
    # Four truncations a block, each below 2**-13 of the block's own sum.
    assert ((promoted - exact).abs() <= 4 * 2**-13 * exact).all()
    assert ((carried - exact).abs() > 4 * 2**-13 * exact).any()
