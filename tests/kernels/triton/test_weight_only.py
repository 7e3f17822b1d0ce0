"""Weight-only kernels in the interpreter against float64.

The bound. Decoded codes are exact in 16 bits, and so are products of an 11-bit and an 8-bit significand in fp32.
With S = sum over k of |x W|, u = 2**-24: a dot of G terms, the scale, and the sum over groups round K/G + G + 2 times
at most, each by u of what was summed, so |error| <= (K + 4) u S in any order. The scale's own conversion to fp32 is
exact. A 16-bit result rounds once more, by 2**-8 (bf16) or 2**-11 (f16) of itself.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlload.kernels.triton import launch
from mlload.kernels.triton.configs import Config
from mlload.kernels.triton.linear import WeightOnly
from mlload.kernels.triton.packed import pack_linear, spec_for, unpack_linear
from mlload.quant.spec import Scheme
from tests.kernels import linears

UNIT = 2.0**-24
HALF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 0.0}
SMALL = Config(64, 16, 4, 2)


def activations(m: int, k: int, dtype: torch.dtype, seed: int = 3) -> Tensor:
    return torch.randn(m, k, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check(x: Tensor, weight: Tensor, y: Tensor, bias: Tensor | None = None) -> None:
    """NaN where the float64 product has it, and within the bound elsewhere."""
    exact = x.double() @ weight.T
    sizes = x.double().abs() @ weight.abs().T
    if bias is not None:
        exact, sizes = exact + bias.double(), sizes + bias.double().abs()
    assert torch.equal(y.isnan(), exact.isnan())
    allowed = (x.shape[1] + 4) * UNIT * sizes + HALF[y.dtype] * exact.abs() * 1.0001
    bad = ~((y.double() - exact).abs() <= allowed) & ~exact.isnan()
    assert not bad.any(), f"{int(bad.sum())} of {bad.numel()} outside of the bound"


def run(
    scheme: Scheme, linear: linears.Linear, x: Tensor, *, config: Config = SMALL, dtype: torch.dtype = torch.float32
) -> Tensor:
    n, k = linear.weight.shape
    packed = pack_linear(scheme, linear.tensors, n, k)
    if "order" in packed:
        x = x[:, packed["order"]]
    return launch.matmul(x, packed, spec_for(scheme, k, packed), n, out_dtype=dtype, config=config)


INTEGERS = [
    linears.grouped("awq", group=32, symmetric=False),
    linears.grouped("awq", group=64, symmetric=False),
    linears.grouped("awq", group=128, symmetric=False),
    linears.grouped("awq", group=-1, symmetric=False),
    linears.grouped("gptq", group=32),
    linears.grouped("gptq", group=128, symmetric=False),
    linears.grouped("gptq", group=64, symmetric=False, act_order=True),
    linears.grouped("compressed_tensors", group=64),
    linears.grouped("compressed_tensors", group=-1, symmetric=False),
    linears.grouped("compressed_tensors", group=32, act_order=True),
    linears.grouped("gptq", bits=8, group=32, symmetric=False),
    linears.grouped("gptq", bits=8, group=128),
    linears.grouped("compressed_tensors", bits=8, group=-1),
    linears.grouped("compressed_tensors", bits=8, group=64, symmetric=False),
]


def name(scheme: Scheme) -> str:
    order = "-order" if scheme.act_order else ""
    return f"{scheme.format}{scheme.bits}-g{scheme.group_size}-{'sym' if scheme.symmetric else 'asym'}{order}"


@pytest.mark.parametrize("scheme", INTEGERS, ids=name)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_every_group_size_zero_points_and_order(scheme: Scheme, dtype: torch.dtype) -> None:
    linear = linears.integer(scheme, 72, 256)
    x = activations(5, 256, dtype)
    check(x, linear.weight, run(scheme, linear, x))


@pytest.mark.parametrize("scheme", INTEGERS, ids=name)
def test_the_packed_layout_means_the_weight(scheme: Scheme) -> None:
    linear = linears.integer(scheme, 72, 256)
    packed = pack_linear(scheme, linear.tensors, 72, 256)
    found = unpack_linear(spec_for(scheme, 256, packed), packed, 72, 256)
    expected = linear.weight[:, packed["order"]] if "order" in packed else linear.weight
    torch.testing.assert_close(found.double(), expected, rtol=UNIT, atol=0)


@pytest.mark.parametrize("m", [1, 3, 16, 17, 32])
def test_rows_that_do_not_fill_a_tile(m: int) -> None:
    scheme = linears.grouped("gptq")
    linear = linears.integer(scheme, 136, 128)
    x = activations(m, 128, torch.bfloat16)
    check(x, linear.weight, run(scheme, linear, x))


@pytest.mark.parametrize("k", [32, 96, 160, 200])
def test_k_that_does_not_fill_a_tile(k: int) -> None:
    """A ragged last tile, and at 200 a ragged last group of 8."""
    scheme = linears.grouped("gptq", group=32, symmetric=False)
    linear = linears.integer(scheme, 64, k)
    x = activations(4, k, torch.bfloat16)
    check(x, linear.weight, run(scheme, linear, x))


@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("splits", [1, 2, 3])
def test_splits_of_k_and_tiles_of_n(block: int, splits: int) -> None:
    scheme = linears.grouped("awq", group=64, symmetric=False)
    linear = linears.integer(scheme, 200, 384)
    x = activations(3, 384, torch.float16)
    config = Config(block, 16, 4, 2, splits)
    first = run(scheme, linear, x, config=config)
    check(x, linear.weight, first)
    assert torch.equal(first, run(scheme, linear, x, config=config))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_bias_and_results_of_16_bits(dtype: torch.dtype) -> None:
    scheme = linears.grouped("compressed_tensors")
    linear = linears.integer(scheme, 64, 128)
    kernel = WeightOnly(scheme, 64, 128, dtype)
    x, bias = activations(6, 128, dtype).reshape(2, 3, 128), activations(1, 64, dtype)[0]
    y = kernel.apply(x, kernel.prepare(linear.tensors), bias)
    assert (y.shape, y.dtype) == ((2, 3, 64), dtype)
    check(x.reshape(6, 128), linear.weight, y.reshape(6, 64), bias)


def test_activations_that_are_not_contiguous() -> None:
    scheme = linears.grouped("gptq", group=32)
    linear = linears.integer(scheme, 64, 128)
    for x in (activations(4, 256, torch.bfloat16)[:, ::2], activations(4, 200, torch.bfloat16)[:, 40:168]):
        check(x, linear.weight, run(scheme, linear, x))


def test_a_share_of_an_act_order_layer_whose_groups_are_not_whole() -> None:
    """Rank 1 of 2 holds half of the rows, some of every group."""
    scheme = linears.grouped("gptq", group=64, symmetric=False, act_order=True)
    whole = linears.integer(scheme, 64, 256)
    tensors = {**whole.tensors, "qweight": whole.tensors["qweight"][16:], "g_idx": whole.tensors["g_idx"][128:]}
    share = linears.Linear(tensors, whole.weight[:, 128:])
    x = activations(4, 128, torch.bfloat16)
    check(x, share.weight, run(scheme, share, x))


@pytest.mark.parametrize("bits", [4, 8])
def test_a_share_with_whole_splinters_of_groups(bits: int) -> None:
    """Of each group of 64 it holds one half, 32 columns: as many as it was given, and still no whole group."""
    scheme = linears.grouped("gptq", bits=bits, group=64, symmetric=False, act_order=True)
    whole = linears.integer(scheme, 64, 256)
    half = torch.arange(128) // 32
    rank = torch.cat([torch.nonzero(whole.tensors["g_idx"] == group)[:32, 0] for group in range(4)])
    each = 32 // bits
    packed = whole.tensors["qweight"]
    codes = torch.stack([(packed >> (bits * i)) & ((1 << bits) - 1) for i in range(each)], 1).reshape(256, 64)[rank]
    words = (codes.long().reshape(-1, each, 64) << (bits * torch.arange(each))[None, :, None]).sum(1)
    tensors = {**whole.tensors, "qweight": words.to(torch.int32), "g_idx": half.to(torch.int32)}
    x = activations(4, 128, torch.bfloat16)
    check(x, whole.weight[:, rank], run(scheme, linears.Linear(tensors, whole.weight[:, rank]), x))


@pytest.mark.parametrize("symmetric", [True, False], ids=["sym", "asym"])
def test_groups_of_more_than_a_tile(symmetric: bool) -> None:
    """256 values share a scale; the last group is ragged."""
    scheme = linears.grouped("gptq", group=256, symmetric=symmetric)
    linear = linears.integer(scheme, 72, 384)
    x = activations(4, 384, torch.bfloat16)
    check(x, linear.weight, run(scheme, linear, x))
    found = launch.dequantize(pack_linear(scheme, linear.tensors, 72, 384), spec_for(scheme, 384), 72, 384, x.dtype)
    assert torch.equal(found, linear.weight.float().to(x.dtype))


def test_extreme_and_zero_scales() -> None:
    """Scales at both ends of f16, its subnormals and zero; sums stay below fp32's largest."""
    scheme = linears.grouped("gptq", group=32)
    linear = linears.integer(scheme, 64, 128)
    scales = torch.tensor([65504.0, 6.0e-8, 0.0, 6.1e-5], dtype=torch.float16)[:, None].expand(4, 64).contiguous()
    codes = linear.weight / linear.tensors["scales"].double().T.repeat_interleave(32, 1)
    linear = linears.Linear(
        {**linear.tensors, "scales": scales}, codes.round() * scales.double().T.repeat_interleave(32, 1)
    )
    x = activations(4, 128, torch.bfloat16)
    check(x, linear.weight, run(scheme, linear, x))


def test_nan_and_infinity_reach_their_outputs_and_no_others() -> None:
    scheme = linears.grouped("awq", group=64, symmetric=False)
    linear = linears.integer(scheme, 64, 128)
    x = activations(4, 128, torch.bfloat16)
    x[1, 5] = torch.nan
    linear.tensors["scales"][1, 7] = torch.nan
    linear.weight[7, 64:] = torch.nan
    y = run(scheme, linear, x)
    check(x, linear.weight, y)
    assert y[1].isnan().all() and y[:, 7].isnan().all() and int(y.isnan().sum()) == 64 + 3
    x[1, 5] = torch.inf
    assert not run(scheme, linear, x)[1].isfinite().any()


def test_no_rows_at_all() -> None:
    scheme = linears.grouped("gptq")
    linear = linears.integer(scheme, 64, 128)
    assert run(scheme, linear, activations(0, 128, torch.bfloat16)).shape == (0, 64)


@pytest.mark.parametrize("scheme", [linears.FP8_TENSOR, linears.FP8_CHANNEL, linears.FP8_BLOCK], ids=lambda s: s.layout)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_fp8_weights_by_their_bits(scheme: Scheme, dtype: torch.dtype) -> None:
    linear = linears.fp8(scheme, 136, 256)
    x = activations(5, 256, dtype)
    check(x, linear.weight, run(scheme, linear, x))


def test_fp8_nan_weights_make_their_outputs_nan() -> None:
    linear = linears.fp8(linears.FP8_BLOCK, 136, 256)
    linear.tensors["weight"].view(torch.uint8)[[3, 130], [7, 200]] = torch.tensor([0x7F, 0xFF], dtype=torch.uint8)
    linear.weight[[3, 130], [7, 200]] = torch.nan
    x = activations(2, 256, torch.bfloat16)
    check(x, linear.weight, run(linears.FP8_BLOCK, linear, x))


@pytest.mark.parametrize(
    "scheme", [linears.MXFP4, linears.MXFP4_GPT_OSS, linears.NVFP4, linears.NVFP4_MODELOPT], ids=lambda s: s.layout
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_four_bit_floats(scheme: Scheme, dtype: torch.dtype) -> None:
    linear = linears.fp4(scheme, 72, 192)
    x = activations(5, 192, dtype)
    check(x, linear.weight, run(scheme, linear, x))


def test_mxfp4_scales_at_both_ends_and_nan() -> None:
    linear = linears.fp4(linears.MXFP4, 64, 128)
    values = linear.weight / torch.exp2(linear.tensors["weight_scale"].double() - 127).repeat_interleave(32, 1)
    exponent = torch.tensor([0, 1, 230, 127], dtype=torch.uint8).expand(64, 4).contiguous()
    exponent[9, 2] = 255
    scale = torch.where(exponent == 255, torch.nan, torch.exp2(exponent.double() - 127))
    linear = linears.Linear({**linear.tensors, "weight_scale": exponent}, values * scale.repeat_interleave(32, 1))
    x = activations(3, 128, torch.bfloat16)
    check(x, linear.weight, run(linears.MXFP4, linear, x))


@pytest.mark.parametrize(
    "scheme",
    [
        linears.grouped("awq", group=32, symmetric=False),
        linears.grouped("gptq", group=-1),
        linears.grouped("gptq", bits=8, group=64, symmetric=False),
    ],
    ids=name,
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_dequantize_integers(scheme: Scheme, dtype: torch.dtype) -> None:
    linear = linears.integer(scheme, 72, 160)
    packed = pack_linear(scheme, linear.tensors, 72, 160)
    found = launch.dequantize(packed, spec_for(scheme, 160), 72, 160, dtype)
    assert torch.equal(found, linear.weight.float().to(dtype))


@pytest.mark.parametrize(
    ("scheme", "linear"),
    [
        (linears.FP8_BLOCK, linears.fp8(linears.FP8_BLOCK, 136, 160)),
        (linears.MXFP4, linears.fp4(linears.MXFP4, 72, 160)),
        (linears.NVFP4, linears.fp4(linears.NVFP4, 72, 160)),
    ],
    ids=["fp8", "mxfp4", "nvfp4"],
)
def test_dequantize_elements(scheme: Scheme, linear: linears.Linear) -> None:
    n, k = linear.weight.shape
    packed = pack_linear(scheme, linear.tensors, n, k)
    found = launch.dequantize(packed, spec_for(scheme, k), n, k, torch.bfloat16)
    torch.testing.assert_close(found.double(), linear.weight, rtol=2**-8, atol=0)


def test_many_rows_take_the_dequantizing_path_to_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlload.kernels.triton import configs

    monkeypatch.setattr(configs, "DEQUANTIZE_FROM", 8)
    scheme = linears.grouped("gptq", group=64, act_order=True)
    linear = linears.integer(scheme, 64, 128)
    kernel = WeightOnly(scheme, 64, 128, torch.float16)
    x = activations(8, 128, torch.float16)
    y = kernel.apply(x, kernel.prepare(linear.tensors))
    exact, sizes = x.double() @ linear.weight.T, x.double().abs() @ linear.weight.abs().T
    # Here the weight itself is rounded to f16 once, and the result again.
    assert ((y.double() - exact).abs() <= 2.0**-11 * (sizes + exact.abs()) + 132 * UNIT * sizes).all()
