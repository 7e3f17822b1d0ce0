"""Activations as kernels round them: by arithmetic, and against the compressed-tensors package's own rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mlload.quant.algorithms import activations, smoothquant


def x(rows: int = 6, k: int = 64) -> torch.Tensor:
    made = torch.randn(rows, k, generator=torch.Generator().manual_seed(5))
    made[0, 3] = 40.0
    return made


def test_int8_has_a_scale_a_token() -> None:
    found = activations.by_token_int8(torch.tensor([[127.0, 1.4, -0.6], [1.27, 0.014, -0.006]]))
    assert torch.allclose(found, torch.tensor([[127.0, 1.0, -1.0], [1.27, 0.01, -0.01]]))


def test_static_float8_saturates_at_448_scales() -> None:
    found = activations.static_float8(torch.tensor([[1000.0, -1000.0, 1.0, 17.0]]), torch.tensor([2.0]))
    # e4m3 has 3 bits of mantissa: 8.5 lies between 8 and 9, and 8 is even.
    assert found.tolist() == [[896.0, -896.0, 1.0, 16.0]]


def test_float8_groups_of_a_short_end() -> None:
    made = x(2, 40)
    found = activations.by_group_float8(made, 32)
    assert torch.equal(found[:, :32], activations.by_token_float8(made[:, :32]))
    assert torch.equal(found[:, 32:], activations.by_token_float8(made[:, 32:]))


def theirs(made: torch.Tensor, preset: str, largest: float | None = None) -> torch.Tensor:
    """By compressed-tensors' fake quantization of a linear's input."""
    from compressed_tensors.quantization import preset_name_to_scheme  # type: ignore[import-untyped]
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize  # type: ignore[import-untyped]
    from compressed_tensors.quantization.utils import (  # type: ignore[import-untyped]
        compute_dynamic_scales_and_zp,
        generate_gparam,
    )

    args: Any = preset_name_to_scheme(preset, ["Linear"]).input_activations
    divisor = None
    if largest is not None:
        divisor = generate_gparam(torch.tensor([-largest]), torch.tensor([largest]))
    made = made[None]  # tokens are what lies behind two dims to it
    scale, zero = compute_dynamic_scales_and_zp(made, args, torch.nn.Module(), divisor)
    found: torch.Tensor = fake_quantize(made, scale, zero, args, global_scale=divisor)
    return found[0]


@pytest.mark.parametrize("preset", ["INT8", "FP8_DYNAMIC", "NVFP4", "MXFP4"])
def test_the_compressed_tensors_package_rounds_so(preset: str) -> None:
    made = x()
    largest = float(made.abs().max())
    mine = {
        "INT8": lambda: activations.by_token_int8(made),
        "FP8_DYNAMIC": lambda: activations.by_token_float8(made),
        "NVFP4": lambda: activations.nvfp4(made, torch.tensor([448 * 6 / largest])),
        "MXFP4": lambda: activations.mxfp4(made),
    }[preset]()
    other = theirs(made, preset, largest if preset == "NVFP4" else None)
    # A value on a rounding edge may fall to either side of a division's last bit. Their int8 steps are 1/127.5 of the
    # largest, engines' kernels' 1/127: a step more or less.
    step = made.abs().amax(-1, keepdim=True) / 127 if preset == "INT8" else 0.001
    near = (mine - other).abs() <= 0.02 * other.abs() + step
    assert float(near.float().mean()) > 0.97
    assert abs(float((mine - made).norm() / (other - made).norm()) - 1) < 0.08


def test_smoothing_shares_the_spread_and_keeps_the_product() -> None:
    peak, weight = torch.tensor([100.0, 1.0, 1.0, 0.0]), torch.tensor([[1.0, -1.0, 0.25, 2.0], [0.5, 1.0, 0.125, 1.0]])
    scale = smoothquant.scale(peak, weight, 0.5)
    # sqrt(peak / largest weight), up to one factor for all; a channel that is never spoken on is left alone.
    ratios = (scale[:3] / torch.tensor([10.0, 1.0, 2.0])).tolist()
    assert max(ratios) / min(ratios) < 1 + 1e-5
    assert float(scale[3]) == 1
    made = torch.randn(3, 4)
    assert torch.allclose((made / scale) @ (weight * scale).T, made @ weight.T, atol=1e-5)


def test_alpha_1_makes_all_activations_alike_and_0_all_weights() -> None:
    peak, weight = torch.tensor([8.0, 2.0]), torch.tensor([[1.0, 4.0]])
    even = peak / smoothquant.scale(peak, weight, 1.0)
    assert abs(float(even[0] / even[1]) - 1) < 1e-5
    flat = weight[0] * smoothquant.scale(peak, weight, 0.0)
    assert abs(float(flat[0] / flat[1]) - 1) < 1e-5
