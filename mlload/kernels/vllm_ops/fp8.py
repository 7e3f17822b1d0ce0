"""fp8 with tensor and channel scales on vLLM's CUTLASS GEMM. Source: vLLM 0.33, _custom_ops.py."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mlload.kernels.stored import elements
from mlload.kernels.vllm_ops.functions import function
from mlload.quant.spec import Scheme


class CutlassFp8:
    name, provider = "cutlass_fp8", "vllm"

    def __init__(self, scheme: Scheme, n: int, k: int, dtype: torch.dtype) -> None:
        self.scheme, self.n, self.k = scheme, n, k

    def prepare(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """weight: e4m3 [N, K]; scale: float32 [N, 1]; input_scale: float32 [1] where static."""
        parts = elements(self.scheme, tensors, self.n, self.k)
        packed = {"weight": parts.codes, "scale": parts.scale.expand(self.n).reshape(-1, 1).contiguous()}
        return packed if parts.input_scale is None else {**packed, "input_scale": parts.input_scale.reshape(1)}

    def apply(self, x: Tensor, packed: Mapping[str, Tensor], bias: Tensor | None = None) -> Tensor:
        quantize = function("vllm._custom_ops", "scaled_fp8_quant", "input", "scale", "use_per_token_if_dynamic")
        multiply = function(
            "vllm._custom_ops", "cutlass_scaled_mm", "a", "b", "scale_a", "scale_b", "out_dtype", "bias"
        )
        rows = x.reshape(-1, self.k)
        q, scale = quantize(input=rows, scale=packed.get("input_scale"), use_per_token_if_dynamic=True)
        weight, steps = packed["weight"].T, packed["scale"]
        y: Tensor = multiply(a=q, b=weight, scale_a=scale, scale_b=steps, out_dtype=x.dtype, bias=bias)
        return y.reshape(*x.shape[:-1], self.n)
