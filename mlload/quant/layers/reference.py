"""Any readable scheme on any device: packed in memory, dequantized for each product.

The judge of faster kernels, and what runs where there is none. A large layer is unpacked in runs of rows, so that the
floats of no more than RUN rows exist at a time.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from mlload.kernels.stored import dequantized
from mlload.quant.spec import Scheme


class PackedReference:
    name, provider = "dequantize per product", "mlload"

    def __init__(self, scheme: Scheme, n: int, k: int, dtype: torch.dtype) -> None:
        self.scheme, self.n, self.k, self.dtype = scheme, n, k, dtype

    def prepare(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As stored. Unpacked once here, so that files that do not match their format fail while loading."""
        dequantized(self.scheme, tensors, self.n, self.k)
        return dict(tensors)

    def apply(self, x: Tensor, packed: Mapping[str, Tensor], bias: Tensor | None = None) -> Tensor:
        weight = dequantized(self.scheme, packed, self.n, self.k)
        return F.linear(x, weight.to(x.dtype), bias)
