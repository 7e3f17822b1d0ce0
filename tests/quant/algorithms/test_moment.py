"""Second moments: their triangle, their losses, their factors."""

from __future__ import annotations

import pytest
import torch

from mlload.quant.algorithms import gptq, moment


def rows(count: int, k: int) -> torch.Tensor:
    return torch.randn(count, k, generator=torch.Generator().manual_seed(3))


def test_the_upper_triangle_mirrored_is_the_whole_product() -> None:
    for k in (5, moment.TILE, 2 * moment.TILE + 7):
        x = rows(40, k)
        found = torch.zeros(k, k)
        moment.accumulate(found, x[:25])
        moment.accumulate(found, x[25:])
        moment.mirror(found)
        assert torch.allclose(found, x.T @ x, atol=1e-3)


def test_loss_is_that_of_the_outputs_and_of_a_diagonal_that_of_independent_channels() -> None:
    x, lost = rows(64, 24), rows(6, 24)
    assert abs(moment.loss(lost, x.T @ x) / float((x @ lost.T).square().sum()) - 1) < 1e-4
    by_channel = sum(float((x[:, i : i + 1] @ lost[:, i : i + 1].T).square().sum()) for i in range(24))
    assert abs(moment.loss(lost, x.square().sum(0)) / by_channel - 1) < 1e-4


def test_output_error_of_half_a_weight_is_a_half() -> None:
    x, weight = rows(64, 24), rows(300, 24)
    assert abs(moment.output_error(weight, weight / 2, x.T @ x) - 0.5) < 1e-5
    assert moment.output_error(weight, weight, x.T @ x) == 0
    assert moment.output_error(torch.zeros(4, 24), torch.zeros(4, 24), x.T @ x) == 0


def factor_of(h: torch.Tensor, order: torch.Tensor, damping: float) -> torch.Tensor:
    """R, upper."""
    return gptq.inverse_factor(h, h.diagonal(), order, damping).flip(0, 1)


@pytest.mark.parametrize("k", [48, 600])
def test_the_factor_is_upper_and_its_square_is_the_inverse(k: int) -> None:
    x = rows(4 * k, k)
    h = x.T @ x
    kept, order = h.clone(), torch.randperm(k, generator=torch.Generator().manual_seed(1))
    factor = factor_of(h, order, damping=0.01)
    damped = (h + 0.01 * h.diagonal().mean() * torch.eye(k))[order][:, order]
    assert torch.equal(h, kept)
    assert torch.equal(factor, factor.triu())
    assert torch.allclose(factor.T @ factor @ damped, torch.eye(k), atol=1e-4)


def test_a_singular_moment_is_damped_until_it_can_be_factored() -> None:
    x = rows(3, 48) * 1e3
    factor = factor_of(x.T @ x, torch.arange(48), damping=1e-8)
    assert torch.isfinite(factor).all()
