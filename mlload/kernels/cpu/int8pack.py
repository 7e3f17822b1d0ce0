"""8-bit integers with one scale a row on torch's `_weight_int8pack_mm`, bf16 activations."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mlload.kernels.stored import integers
from mlload.quant.spec import Scheme


class Int8Pack:
    name, provider = "int8pack", "torch"

    def __init__(self, scheme: Scheme, n: int, k: int, dtype: torch.dtype) -> None:
        self.scheme, self.n, self.k = scheme, n, k

    def prepare(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """weight: int8 [N, K]; scale: bf16 [N]."""
        parts = integers(self.scheme, tensors, self.n, self.k)
        return {
            "weight": (parts.codes ^ 0x80).view(torch.int8),
            "scale": parts.scale.reshape(-1).to(torch.bfloat16).contiguous(),
        }

    def apply(self, x: Tensor, packed: Mapping[str, Tensor], bias: Tensor | None = None) -> Tensor:
        rows = x.reshape(-1, self.k).contiguous()
        y: Tensor = torch.ops.aten._weight_int8pack_mm(rows, packed["weight"], packed["scale"])
        y = y.reshape(*x.shape[:-1], self.n)
        return y if bias is None else y + bias
