"""fp8 weights dequantized when they are loaded, with activations rounded to fp8 as the engine rounds them.

A CPU has no fp8 instructions: `torch._scaled_mm` is thirty times slower there than a float product, and widening the
weights in every call hundreds of times.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from mlload.kernels.cpu.values import fp8_values
from mlload.kernels.stored import elements
from mlload.quant.spec import Scheme

LARGEST = 448.0


def quantize_groups(x: Tensor, group: int, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x float [M, K] -> e4m3 [M, K] and float32 scales [M, ceil(K/group)]; saturating, the last group may be short.

    A group of zeros has scale 0 and codes 0; a NaN makes its group's scale NaN."""
    m, k = x.shape
    count = -(-k // group)
    wide = F.pad(x.float(), (0, count * group - k)).reshape(m, count, group)
    # Divided as a tensor: torch turns division by a number into a product with its rounded inverse.
    largest = torch.tensor(LARGEST, device=x.device)
    rows = wide.abs().amax(-1) / largest if scale is None else scale.float().expand(m, count)
    ratio = torch.where(rows[..., None] > 0, wide / rows[..., None], 0.0).clamp(-LARGEST, LARGEST)
    return ratio.reshape(m, -1)[:, :k].to(torch.float8_e4m3fn), rows


class Fp8Emulated:
    name, provider = "fp8_emulated", "torch"

    def __init__(self, scheme: Scheme, n: int, k: int, dtype: torch.dtype) -> None:
        self.scheme, self.n, self.k, self.dtype = scheme, n, k, dtype
        self.group = scheme.block[1] if scheme.block is not None else k

    def prepare(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """weight: [N, K] in the activations' dtype, scales multiplied in; input_scale: float32 [] where static."""
        parts = elements(self.scheme, tensors, self.n, self.k)
        scale = parts.scale
        if self.scheme.block is not None:
            bn, bk = self.scheme.block
            scale = scale.repeat_interleave(bn, 0)[: self.n].repeat_interleave(bk, 1)[:, : self.k]
        elif scale.dim():
            scale = scale[:, None]
        packed = {"weight": (fp8_values(parts.codes) * scale).to(self.dtype)}
        return packed if parts.input_scale is None else {**packed, "input_scale": parts.input_scale}

    def apply(self, x: Tensor, packed: Mapping[str, Tensor], bias: Tensor | None = None) -> Tensor:
        rows = x.reshape(-1, self.k)
        if self.scheme.activation is not None:
            codes, scale = quantize_groups(rows, self.group, packed.get("input_scale"))
            rows = (codes.float() * scale.repeat_interleave(self.group, -1)[:, : self.k]).to(x.dtype)
        return F.linear(rows, packed["weight"], bias).reshape(*x.shape[:-1], self.n)
