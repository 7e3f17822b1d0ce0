"""int8 weights and activations on `torch._int_mm`: exact products, one rounding at the end.

Activations are quantized as the engine does: one scale a row (dynamic), or the stored one (static). Asymmetric ones
have a zero point too, whose product with the weights is taken off again by their sums.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mlload.quant.spec import Scheme


def quantize_rows(x: Tensor, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x float [M, K] -> int8 [M, K] and float32 scales [M, 1], the largest magnitude at 127; a row of zeros has
    scale 0 and codes 0, and a row with a NaN keeps it in its scale."""
    wide = x.float()
    # Divided as a tensor: torch turns division by a number into a product with its rounded inverse.
    largest = torch.tensor(127.0, device=x.device)
    rows = wide.abs().amax(-1, keepdim=True) / largest if scale is None else scale.float().expand(x.shape[0], 1)
    ratio = torch.where(rows > 0, wide / rows, 0.0)
    return ratio.round().clamp(-128, 127).to(torch.int8), rows


def quantize_asymmetric(x: Tensor, scale: Tensor | None, zero: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """x float [M, K] -> int8 [M, K], float32 scales and zero points [M, 1]: x = (code - zero) * scale. Dynamic ones
    spread a row's smallest to largest over -128..127."""
    wide = x.float()
    if scale is None or zero is None:
        low, high = wide.aminmax(dim=-1, keepdim=True)
        rows = (high - low) / torch.tensor(255.0, device=x.device)
        points = torch.where(rows > 0, (-128 - low / rows).round(), 0.0)
    else:
        rows, points = scale.float().expand(x.shape[0], 1), zero.float().expand(x.shape[0], 1)
    ratio = torch.where(rows > 0, wide / rows, 0.0)
    return (ratio.round() + points).clamp(-128, 127).to(torch.int8), rows, points


class Int8Dynamic:
    name, provider = "int8_dynamic", "torch"

    def __init__(self, scheme: Scheme, n: int, k: int, dtype: torch.dtype) -> None:
        self.scheme, self.n, self.k = scheme, n, k

    def prepare(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """weight: int8 [N, K]; scale: float32 [N]; input_scale: float32 [] where static; of asymmetric activations
        also sums: float32 [N] of the weights' rows, and input_zero: float32 [] where static."""
        scale = tensors["weight_scale"].to(torch.float32).reshape(-1).expand(self.n).contiguous()
        packed = {"weight": tensors["weight"], "scale": scale}
        if self.scheme.activation == "static":
            packed["input_scale"] = tensors["input_scale"].to(torch.float32).max().reshape(())
        if not self.scheme.option("input_symmetric", True):
            packed["sums"] = tensors["weight"].sum(1, dtype=torch.int32).to(torch.float32)
            if self.scheme.activation == "static":
                packed["input_zero"] = tensors["input_zero_point"].to(torch.float32).reshape(())
        return packed

    def apply(self, x: Tensor, packed: Mapping[str, Tensor], bias: Tensor | None = None) -> Tensor:
        flat = x.reshape(-1, self.k)
        if "sums" in packed:
            codes, rows, zeros = quantize_asymmetric(flat, packed.get("input_scale"), packed.get("input_zero"))
            wide = torch._int_mm(codes, packed["weight"].T).float() - zeros * packed["sums"]
        else:
            codes, rows = quantize_rows(flat, packed.get("input_scale"))
            wide = torch._int_mm(codes, packed["weight"].T).float()
        y = wide * rows * packed["scale"]
        y = y if bias is None else y + bias.float()
        return y.to(x.dtype).reshape(*x.shape[:-1], self.n)
