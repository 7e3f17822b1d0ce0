"""8-bit weights and activations as layers run them: our GEMM, or torch's around our quantize kernel."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mlload.kernels.stored import elements
from mlload.kernels.triton import w8a8
from mlload.kernels.triton.quantize import quantize
from mlload.quant.spec import Scheme

# torch._int_mm refuses fewer rows than this on a GPU.
INT_MM_ROWS = 17


class Fp8:
    """Block, channel or tensor scales on our GEMM."""

    name, provider = "fp8", "mlload"

    def __init__(self, scheme: Scheme, n: int, k: int, dtype: torch.dtype) -> None:
        self.scheme, self.n, self.k = scheme, n, k
        self.group = 128 if scheme.block is not None else k

    def prepare(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """weight: e4m3 [N, K]; scale: float32 [ceil(N/128), ceil(K/128)] or [N]; input_scale: float32 [1], static."""
        parts = elements(self.scheme, tensors, self.n, self.k)
        scale = parts.scale if self.scheme.block is not None else parts.scale.expand(self.n)
        packed = {"weight": parts.codes, "scale": scale.contiguous()}
        return packed if parts.input_scale is None else {**packed, "input_scale": parts.input_scale.reshape(1)}

    def apply(self, x: Tensor, packed: Mapping[str, Tensor], bias: Tensor | None = None) -> Tensor:
        q, scale = quantize(x.reshape(-1, self.k), self.group, static=packed.get("input_scale"))
        y = self._multiply(q, scale, packed, x.dtype, bias)
        return y.reshape(*x.shape[:-1], self.n)

    def _multiply(
        self, q: Tensor, scale: Tensor, packed: Mapping[str, Tensor], dtype: torch.dtype, bias: Tensor | None
    ) -> Tensor:
        return w8a8.matmul(q, scale, packed["weight"], packed["scale"], dtype, bias)


class ScaledMM(Fp8):
    """Channel and tensor scales on `torch._scaled_mm`, which is cuBLAS and CUTLASS."""

    name, provider = "scaled_mm", "torch"

    def _multiply(
        self, q: Tensor, scale: Tensor, packed: Mapping[str, Tensor], dtype: torch.dtype, bias: Tensor | None
    ) -> Tensor:
        rows = scale.reshape(-1).expand(q.shape[0]).contiguous()[:, None]
        y: Tensor = torch._scaled_mm(
            q,
            packed["weight"].T,
            scale_a=rows,
            scale_b=packed["scale"][None, :],
            out_dtype=torch.bfloat16,
        )
        y = y.to(dtype)
        return y if bias is None else y + bias


class Int8:
    """int8 rows and channels: `torch._int_mm` for many rows, our GEMM for the few that it refuses."""

    name, provider = "int8", "mlload"

    def __init__(self, scheme: Scheme, n: int, k: int, dtype: torch.dtype) -> None:
        self.scheme, self.n, self.k = scheme, n, k

    def prepare(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """weight: int8 [N, K]; scale: float32 [N]; input_scale: float32 [1] where static."""
        scale = tensors["weight_scale"].to(torch.float32).reshape(-1).expand(self.n).contiguous()
        packed = {"weight": tensors["weight"], "scale": scale}
        if self.scheme.activation == "static":
            packed["input_scale"] = tensors["input_scale"].to(torch.float32).max().reshape(1)
        return packed

    def apply(self, x: Tensor, packed: Mapping[str, Tensor], bias: Tensor | None = None) -> Tensor:
        q, scale = quantize(x.reshape(-1, self.k), self.k, static=packed.get("input_scale"), int8=True)
        if q.shape[0] < INT_MM_ROWS or self.n % 8 or self.k % 8:
            y = w8a8.matmul(q, scale, packed["weight"], packed["scale"], x.dtype, bias)
        else:
            wide = torch._int_mm(q, packed["weight"].T).float() * scale * packed["scale"]
            y = (wide if bias is None else wide + bias.float()).to(x.dtype)
        return y.reshape(*x.shape[:-1], self.n)
