"""load_format "dummy": the structure without the weights, to profile before (or without) reading any."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mlload.loader.base import BaseModelLoader, Destinations, RankTensor
from mlload.loader.destination import Destination
from mlload.plan.plan import Plan

# vLLM's dummy loader draws from the same range: small enough that no layer overflows.
RANGE = 1e-3


class DummyLoader(BaseModelLoader):
    """Small uniform floats from a fixed seed; zeros in whatever is not a float of 16 bits or more."""

    reads_weights = False

    def tensors(self, plan: Plan, rank: int, destinations: Destinations) -> Iterator[RankTensor]:
        generator = torch.Generator().manual_seed(1234)
        for name, destination in destinations.items():
            _fill(destination, generator)
            yield RankTensor(name, tuple((0, size) for size in destination.shape), None)


def _fill(destination: Destination, generator: torch.Generator) -> None:
    view = destination.view()
    if view.is_floating_point() and view.element_size() >= 2:
        values = torch.empty(view.shape, dtype=torch.float32).uniform_(-RANGE, RANGE, generator=generator)
        view.copy_(values)
    else:
        view.zero_()
