"""Rounding to integers, fp8 and fp4, against brute force and the tables of `quant.formats.elements`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mlload.quant.algorithms import float4, float8, int8, integer
from mlload.quant.formats import elements


def weight(n: int = 24, k: int = 128, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize("symmetric", [True, False])
def test_codes_are_the_nearest_of_all(symmetric: bool, group: int) -> None:
    values = weight()
    grid = integer.fit(values, 4, group, symmetric=symmetric, dtype=torch.float16)
    back = integer.dequantize(integer.quantize(values, grid), grid)
    size = 128 if group < 0 else group
    steps = torch.arange(16.0)
    for row, column in ((0, 0), (3, 70), (23, 127)):
        g = column // size
        reachable = (steps - grid.zero[row, g]) * grid.scale[row, g]
        nearest = (reachable - values[row, column]).abs().min()
        assert abs(float((back[row, column] - values[row, column]).abs()) - float(nearest)) < 1e-6
    assert torch.equal(grid.scale, grid.scale.half().float()), "a scale that the file can hold"
    assert torch.equal(grid.zero, grid.zero.round())


def test_clipping_loses_less_than_the_whole_range() -> None:
    values = weight()
    values[0, 0] = 12.0

    def lost(clip: bool) -> float:
        grid = integer.fit(values, 4, 64, symmetric=True, dtype=torch.float32, clip=clip)
        return float((integer.dequantize(integer.quantize(values, grid), grid) - values).square().sum())

    assert lost(True) < 0.97 * lost(False)


def test_a_weight_of_zeros_stays_zero() -> None:
    for symmetric in (True, False):
        grid = integer.fit(torch.zeros(2, 64), 4, 32, symmetric=symmetric, dtype=torch.float16)
        assert not integer.dequantize(integer.quantize(torch.zeros(2, 64), grid), grid).any()


def test_fp4_codes_are_those_of_the_table_with_ties_to_even() -> None:
    values = np.concatenate([np.linspace(-8, 8, 4001), np.array(float4.MIDDLES), -np.array(float4.MIDDLES)])
    values = values.astype(np.float32)
    expected = elements.e2m1_table()[elements.encode(values, elements.e2m1_table())]
    assert np.array_equal(float4.decode(float4.encode(torch.from_numpy(values))).numpy(), expected)


def test_mxfp4_scales_are_powers_of_two_and_no_worse_than_the_standard_s() -> None:
    values = weight(8, 64)
    codes, scale = float4.mx_quantize(values)
    back = float4.mx_dequantize(codes, scale).numpy()
    table = elements.e2m1_table()
    assert np.array_equal(back, table[codes.numpy()] * elements.spread(elements.e8m0(scale.numpy()), 8, 64, 32))
    # OCP MX: floor(log2(amax)) - 2.
    groups = values.numpy().reshape(8, 2, 32)
    standard = np.exp2(np.floor(np.log2(np.abs(groups).max(-1, keepdims=True))) - 2)
    plain = table[elements.encode(groups / standard, table)] * standard
    assert np.square(back.reshape(groups.shape) - groups).sum() <= np.square(plain - groups).sum()


def test_nvfp4_reads_back_by_its_table() -> None:
    values = weight(4, 64) * 0.03
    divisor = float4.nv_global(values.abs().max())
    codes, scale = float4.nv_quantize(values, divisor)
    local = elements.e4m3_table()[scale.view(torch.uint8).numpy()] / divisor.numpy()
    expected = elements.e2m1_table()[codes.numpy()] * elements.spread(local, 4, 64, 16)
    assert np.allclose(float4.nv_dequantize(codes, scale, divisor).numpy(), expected, rtol=1e-6)
    assert float((torch.from_numpy(expected) - values).norm() / values.norm()) < 0.12


@pytest.mark.parametrize("strategy", ["tensor", "channel", "block"])
def test_fp8_is_the_table_s_nearest_and_never_nan(strategy: str) -> None:
    values = weight(40, 72) * 3
    block = (32, 32) if strategy == "block" else (0, 0)
    scale = float8.scales(values, strategy, block)  # type: ignore[arg-type]
    codes = float8.quantize(values, scale, block)
    spread = float8.expand(scale, values.shape, block).expand(values.shape)
    expected = elements.encode((values / spread).numpy(), elements.e4m3_table())
    assert np.array_equal(codes.view(torch.uint8).numpy() & 0x7F, expected & 0x7F)
    assert torch.isfinite(float8.dequantize(codes, scale, block)).all()


def test_int8_is_within_half_a_step() -> None:
    values = weight()
    scale = int8.scales(values)
    assert ((int8.dequantize(int8.quantize(values, scale), scale) - values).abs() <= scale / 2 + 1e-6).all()


def test_ranges_are_those_that_lose_least_by_the_power_2_4() -> None:
    """Against a search in plain floats; the square would choose other ranges for some of the groups."""
    values = torch.randn(64, 64, generator=torch.Generator().manual_seed(3)) ** 3
    grid = integer.fit(values, 4, 64, symmetric=True, dtype=torch.float32)

    def best(group: list[float], power: float) -> float:
        scales = [max(map(abs, group)) * (1 - 0.05 * step) / 7 for step in range(11)]

        def lost(scale: float) -> float:
            return sum(abs(min(max(round(v / scale), -8), 7) * scale - v) ** power for v in group)

        return min(scales, key=lost)

    groups = values.double().tolist()
    chosen = grid.scale[:, 0].tolist()
    assert chosen == pytest.approx([best(group, 2.4) for group in groups], rel=1e-6)
    assert chosen != pytest.approx([best(group, 2.0) for group in groups], rel=1e-6)
