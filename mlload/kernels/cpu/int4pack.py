"""4-bit integers on torch's `_weight_int4pack_mm_for_cpu`, bf16 activations.

N, K, G as in `stored`. Its value is (q - 8) * s + z with s and z in bf16, so z = (8 - zero) * s is rounded once more.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mlload.kernels.stored import integers
from mlload.quant.spec import Scheme


class Int4Pack:
    name, provider = "int4pack", "torch"

    def __init__(self, scheme: Scheme, n: int, k: int, dtype: torch.dtype) -> None:
        self.scheme, self.n, self.k = scheme, n, k
        self.group = k if scheme.group_size in (None, -1) else int(scheme.group_size or k)

    def prepare(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """weight: packed by torch; scale: bf16 [K/G, N, 2] of (s, (8 - zero) * s)."""
        parts = integers(self.scheme, tensors, self.n, self.k)
        scale = parts.scale.to(torch.bfloat16)
        zero = torch.zeros_like(scale) if parts.zero is None else (8 - parts.zero.float()).mul(scale.float()).to(scale)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(parts.codes.to(torch.int32), 1)
        return {"weight": packed, "scale": torch.stack([scale, zero], -1).transpose(0, 1).contiguous()}

    def apply(self, x: Tensor, packed: Mapping[str, Tensor], bias: Tensor | None = None) -> Tensor:
        rows = x.reshape(-1, self.k).contiguous()
        y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, packed["weight"], self.group, packed["scale"])
        y = y.reshape(*x.shape[:-1], self.n)
        return y if bias is None else y + bias
