"""Our weight-only kernels as layers run them: w4a16, w8a16, fp8 without fp8 instructions, mxfp4, nvfp4."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from mlload.kernels.triton import configs, launch
from mlload.kernels.triton.packed import pack_linear, spec_for
from mlload.quant.spec import Scheme


class WeightOnly:
    name, provider = "weight_only", "mlload"

    def __init__(self, scheme: Scheme, n: int, k: int, dtype: torch.dtype) -> None:
        self.scheme, self.n, self.k, self.dtype = scheme, n, k, dtype

    def prepare(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As `packed` describes; scales keep their dtype."""
        return pack_linear(self.scheme, tensors, self.n, self.k)

    def apply(self, x: Tensor, packed: Mapping[str, Tensor], bias: Tensor | None = None) -> Tensor:
        rows = x.reshape(-1, self.k)
        if "order" in packed:
            rows = rows.index_select(1, packed["order"])
        spec = spec_for(self.scheme, self.k, packed)
        if rows.shape[0] >= configs.DEQUANTIZE_FROM:
            weight = launch.dequantize(packed, spec, self.n, rows.shape[1], x.dtype)
            y = F.linear(rows, weight, bias)
        else:
            y = launch.matmul(rows, packed, spec, self.n, bias)
        return y.reshape(*x.shape[:-1], self.n)
