"""What GGUF does to rows, undone; quantiles; divergences."""

from __future__ import annotations

import math

import pytest
import torch

from mlload.checkpoint.finding import MlloadError
from mlload.engine.record import divergence
from mlload.engine.sweep import quantile
from mlload.engine.transforms import transform


def test_paired_rows_come_apart_head_by_head() -> None:
    """llama.cpp writes rows 0, 4, 1, 5, 2, 6, 3, 7 of a head of eight."""
    paired = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15])[:, None]
    assert transform(paired, ("unpair_rope:8",))[:, 0].tolist() == list(range(16))


def test_unknown_transforms_are_refused() -> None:
    with pytest.raises(MlloadError, match="no loader knows the transform 'mirror'"):
        transform(torch.zeros(2, 2), ("mirror",))


def test_quantiles_are_values_that_were_measured() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile([], 0.5)) == (3.0, 5.0, 0.0)


def test_divergence_of_two_coins() -> None:
    """One kept outcome of probability 1/2, and 1/4 now: KL = ln 2 / 2 + ln(2/3) / 2."""
    kept, now = torch.tensor([[0.5]]).double().log(), torch.tensor([[0.25]]).double().log()
    want = 0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75)
    assert abs(float(divergence(kept, now)) - want) < 1e-12
    assert float(divergence(kept, kept)) == 0
