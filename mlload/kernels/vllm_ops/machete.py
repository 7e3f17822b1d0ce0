"""4 and 8-bit integers on vLLM's Machete, Hopper's own: asked before Marlin there, as vLLM does.

N, K, G as in `stored`. Repacked by vLLM's operator from GPTQ's layout, column-major; zero points reach it as products
-scale * zero in the activations' dtype. Source: vLLM 0.33, model_executor/kernels/linear/mixed_precision/machete.py.
Never run here, where there is no Hopper: what it is given is tested, what it does with it is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mlload.kernels.stored import integers
from mlload.kernels.vllm_ops.functions import function
from mlload.kernels.vllm_ops.marlin import words
from mlload.quant.spec import Scheme

OPERATORS = "vllm._custom_ops"


class Machete:
    name, provider = "machete", "vllm"

    def __init__(self, scheme: Scheme, n: int, k: int, dtype: torch.dtype) -> None:
        self.scheme, self.n, self.k, self.dtype = scheme, n, k, dtype
        self.group = scheme.group_size if scheme.strategy == "group" and scheme.group_size else -1

    def inputs(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """weight: int32 [K * bits / 32, N], its columns contiguous; scale [groups, N]; zero [groups, N] where there are
        zero points."""
        parts = integers(self.scheme, tensors, self.n, self.k)
        scale = parts.scale.T.to(self.dtype).contiguous()
        found = {"weight": words(parts.codes, self.scheme.bits).T.contiguous().T, "scale": scale}
        if parts.zero is not None:
            found["zero"] = (-1.0 * scale * parts.zero.T.to(self.dtype)).contiguous()
        return found

    def prepare(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As `inputs`, the weight in Machete's order."""
        repack = function(OPERATORS, "machete_prepack_B", "b_q_weight", "a_type", "b_type", "group_scales_type")
        found = self.inputs(tensors)
        kind = self._kind("zero" in found)
        found["weight"] = repack(
            b_q_weight=found["weight"], a_type=self.dtype, b_type=kind, group_scales_type=self.dtype
        )
        return found

    def apply(self, x: Tensor, packed: Mapping[str, Tensor], bias: Tensor | None = None) -> Tensor:
        multiply = function(
            OPERATORS, "machete_mm", "a", "b_q", "b_type", "b_group_zeros", "b_group_scales", "b_group_size"
        )
        y: Tensor = multiply(
            a=x.reshape(-1, self.k),
            b_q=packed["weight"],
            b_type=self._kind("zero" in packed),
            b_group_zeros=packed.get("zero"),
            b_group_scales=packed["scale"],
            b_group_size=self.group,
        )
        y = y if bias is None else y + bias
        return y.reshape(*x.shape[:-1], self.n)

    def _kind(self, zero: bool) -> Any:
        from vllm.scalar_type import scalar_types

        if self.scheme.bits == 4:
            return scalar_types.uint4 if zero else scalar_types.uint4b8
        return scalar_types.uint8 if zero else scalar_types.uint8b128
