"""A kernel that unpacks weights at load, made to keep them packed: it unpacks for each product instead.

The judge of faster kernels, and what runs where there is none. The floats of one layer exist at a time.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from mlload.kernels.kernel import LinearKernel


class PerProduct:
    """kernel: whose `prepare` grows the weights."""

    def __init__(self, kernel: LinearKernel) -> None:
        self.kernel = kernel
        self.name, self.provider = f"{kernel.name} per product", kernel.provider

    def prepare(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As stored."""
        return dict(tensors)

    def apply(self, x: Tensor, packed: Mapping[str, Tensor], bias: Tensor | None = None) -> Tensor:
        return self.kernel.apply(x, self.kernel.prepare(packed), bias)
