"""Any readable scheme: weights are dequantized when they are loaded, and multiplied as floats.

Four to eight times the packed size in memory, exact to the activations' dtype, and as fast as an unquantized linear.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from mlload.kernels.cpu.values import values
from mlload.quant.spec import Scheme


class Dequantized:
    name, provider = "dequantized", "torch"

    def __init__(self, scheme: Scheme, n: int, k: int, dtype: torch.dtype) -> None:
        self.scheme, self.n, self.k, self.dtype = scheme, n, k, dtype

    def prepare(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """weight [N, K] in the activations' dtype."""
        return {"weight": values(self.scheme, tensors, self.n, self.k).to(self.dtype)}

    def apply(self, x: Tensor, packed: Mapping[str, Tensor], bias: Tensor | None = None) -> Tensor:
        return F.linear(x, packed["weight"], bias)
