"""AWQ and GPTQ on matrices: what the second moment says is what a forward pass would."""

from __future__ import annotations

import torch

from mlload.quant.algorithms import awq, gptq, integer


def case(n: int = 48, k: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight, and inputs with correlated channels of which a few are large."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(n, k, generator=generator) * 0.1
    mix = torch.eye(k) + 0.3 * torch.randn(k, k, generator=generator)
    inputs = torch.randn(512, k, generator=generator) @ mix
    inputs[:, -4:] *= 20
    return weight, inputs


def lost(weight: torch.Tensor, back: torch.Tensor, inputs: torch.Tensor) -> float:
    return float((inputs @ (back - weight).T).square().sum())


def test_gptq_loses_less_than_rounding_and_act_order_less_still() -> None:
    weight, inputs = case()
    moment = inputs.T @ inputs
    grid = integer.fit(weight, 4, 32, symmetric=True, dtype=torch.float16)
    plain = lost(weight, integer.dequantize(integer.quantize(weight, grid), grid), inputs)
    ordered = [
        lost(weight, integer.dequantize(gptq.quantize(weight, gptq.prepare(moment, act_order=act), grid), grid), inputs)
        for act in (False, True)
    ]
    assert ordered[0] < plain
    # The channels that count most come last here: rounded first, they leave their error to those that count less.
    assert ordered[1] < 0.5 * ordered[0]


def test_gptq_with_independent_inputs_is_rounding() -> None:
    weight, _ = case()
    grid = integer.fit(weight, 4, 32, symmetric=False, dtype=torch.float16)
    codes = gptq.quantize(weight, gptq.prepare(torch.eye(128) * 7), grid)
    assert float((codes != integer.quantize(weight, grid)).float().mean()) < 1e-3


def test_gptq_takes_channels_that_never_speak() -> None:
    weight, inputs = case()
    inputs[:, 5] = 0
    grid = integer.fit(weight, 4, 32, symmetric=True, dtype=torch.float16)
    back = integer.dequantize(gptq.quantize(weight, gptq.prepare(inputs.T @ inputs), grid), grid)
    assert torch.isfinite(back).all()
    assert not back[:, 5].any()


def test_awq_loss_is_the_output_s_and_its_scale_lowers_it() -> None:
    weight, inputs = case()
    moment, magnitude = inputs.T @ inputs, inputs.abs().mean(0)
    scale, least, none = awq.search_scale([weight], moment, magnitude, 4, 32, symmetric=False, dtype=torch.float16)

    def output_loss(factor: torch.Tensor) -> float:
        scaled = weight * factor
        grid = integer.fit(scaled, 4, 32, symmetric=False, dtype=torch.float16, clip=False)
        return lost(weight, integer.dequantize(integer.quantize(scaled, grid), grid) / factor, inputs)

    assert abs(none - output_loss(torch.ones(128))) < 1e-3 * none
    assert abs(least - output_loss(scale)) < 1e-3 * none
    assert least < 0.7 * none


def test_channels_that_share_a_scale_get_one() -> None:
    weight, inputs = case()
    shared = torch.arange(128) % 32
    scale, _, _ = awq.search_scale(
        [weight],
        inputs.T @ inputs,
        inputs.abs().mean(0),
        4,
        32,
        symmetric=False,
        dtype=torch.float16,
        shared=shared,
    )
    assert torch.allclose(scale.reshape(4, 32)[0], scale.reshape(4, 32)[3])


def test_clipping_by_the_moment_loses_less_than_none() -> None:
    weight, inputs = case()
    moment = inputs.T @ inputs
    weight[:, 40] *= 4
    kind = {"symmetric": False, "dtype": torch.float16}
    clipped = awq.clipped_grid(weight, moment, 4, 32, **kind)  # type: ignore[arg-type]
    whole = integer.fit(weight, 4, 32, clip=False, **kind)  # type: ignore[arg-type]

    def local(grid: integer.Grid) -> float:
        """Of each group's own part of the output, which is what is looked at."""
        back = integer.dequantize(integer.quantize(weight, grid), grid)
        return sum(
            lost(weight[:, at : at + 32], back[:, at : at + 32], inputs[:, at : at + 32]) for at in range(0, 128, 32)
        )

    assert local(clipped) < 0.95 * local(whole)
