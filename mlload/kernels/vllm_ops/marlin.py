"""4 and 8-bit integers on vLLM's Marlin.

N, K, G as in `stored`. Repacked by vLLM's own operators from GPTQ's layout, to which codes of every format are brought.
Source: vLLM 0.33, model_executor/layers/quantization/utils/marlin_utils.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mlload.kernels.stored import integers
from mlload.kernels.vllm_ops.functions import function
from mlload.quant.spec import Scheme

UTILS = "vllm.model_executor.layers.quantization.utils.marlin_utils"


class Marlin:
    name, provider = "marlin", "vllm"

    def __init__(self, scheme: Scheme, n: int, k: int, dtype: torch.dtype) -> None:
        self.scheme, self.n, self.k, self.dtype = scheme, n, k, dtype
        self.group = scheme.group_size if scheme.strategy == "group" and scheme.group_size else -1

    def prepare(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """weight, scale, zero in Marlin's order, and the locks that its blocks wait on."""
        parts = integers(self.scheme, tensors, self.n, self.k)
        bits = self.scheme.bits
        repack = function("vllm._custom_ops", "gptq_marlin_repack", "b_q_weight", "size_k", "size_n", "num_bits")
        scales = function(UTILS, "marlin_permute_scales", "s", "size_k", "size_n", "group_size")
        zeros = function(UTILS, "marlin_zero_points", "zp", "size_k", "size_n", "num_bits")
        locks = function(UTILS, "marlin_make_workspace_new", "device")
        scale = parts.scale.T.to(self.dtype).contiguous()
        packed = {
            "weight": repack(b_q_weight=words(parts.codes, bits), size_k=self.k, size_n=self.n, num_bits=bits),
            "scale": scales(s=scale, size_k=self.k, size_n=self.n, group_size=self.group),
            "workspace": locks(device=scale.device),
        }
        if parts.zero is not None:
            codes = parts.zero.T.to(torch.int32).contiguous()
            packed["zero"] = zeros(zp=codes, size_k=codes.shape[0], size_n=self.n, num_bits=bits)
        return packed

    def apply(self, x: Tensor, packed: Mapping[str, Tensor], bias: Tensor | None = None) -> Tensor:
        from vllm.scalar_type import scalar_types

        multiply = function(
            UTILS,
            "apply_gptq_marlin_linear",
            "input",
            "weight",
            "weight_scale",
            "weight_zp",
            "workspace",
            "wtype",
            "output_size_per_partition",
            "input_size_per_partition",
        )
        empty = torch.empty(0, dtype=torch.int32, device=x.device)
        biased = scalar_types.uint4b8 if self.scheme.bits == 4 else scalar_types.uint8b128
        y: Tensor = multiply(
            input=x,
            weight=packed["weight"],
            weight_scale=packed["scale"],
            weight_zp=packed.get("zero", empty),
            workspace=packed["workspace"],
            wtype=scalar_types.uint4 if "zero" in packed else biased,
            output_size_per_partition=self.n,
            input_size_per_partition=self.k,
        )
        return y if bias is None else y + bias


def words(codes: Tensor, bits: int) -> Tensor:
    """uint8 codes [N, K] -> GPTQ's int32 [K * bits / 32, N], the first row in the lowest bits."""
    per = 32 // bits
    rows = codes.T.to(torch.int32).reshape(-1, per, codes.shape[0])
    out = torch.zeros_like(rows[:, 0])
    for i in range(per):
        out |= rows[:, i] << (bits * i)
    return out.contiguous()
