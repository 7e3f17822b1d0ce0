"""Experts on vLLM's fused kernels: Marlin for 4 and 8-bit integers, its Triton kernels for floats and fp8.

E, H, I as in `kernels.experts`. A router's -1 becomes a last expert that the expert map sends nowhere. Sources: vLLM
0.33, model_executor/layers/fused_moe/experts/marlin_moe.py, oracle/int_wna16.py, fused_moe.py. Never run here, where
there is no GPU: what they are given is tested, what they do with it is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mlload.kernels.experts import ExpertShape
from mlload.kernels.families import family
from mlload.kernels.stored import elements, integers
from mlload.kernels.vllm_ops.functions import function
from mlload.kernels.vllm_ops.marlin import UTILS, words
from mlload.quant.spec import Scheme

Stored = Sequence[Mapping[str, Tensor]]


class _Experts:
    """What both do alike."""

    provider = "vllm"

    def __init__(self, scheme: Scheme | None, shape: ExpertShape, dtype: torch.dtype) -> None:
        self.scheme, self.shape, self.dtype = scheme, shape, dtype

    def both(self, gate_up: Stored, down: Stored) -> tuple[tuple[str, Stored, int, int], ...]:
        """(vLLM's name, tensors of each expert, N, K)."""
        hidden, inner = self.shape.hidden, self.shape.inner
        return ("w1", gate_up, 2 * inner, hidden), ("w2", down, hidden, inner)

    def routing(self, ids: Tensor) -> dict[str, Any]:
        """topk_ids, global_num_experts and expert_map of vLLM's functions."""
        count = self.shape.experts
        if not self.shape.dealt_out:
            return {"topk_ids": ids.to(torch.int32), "global_num_experts": count, "expert_map": None}
        places = torch.arange(count + 1, dtype=torch.int32, device=ids.device)
        return {
            "topk_ids": torch.where(ids < 0, count, ids).to(torch.int32),
            "global_num_experts": count + 1,
            "expert_map": torch.where(places < count, places, -1),
        }


class MarlinExperts(_Experts):
    name = "fused_marlin_moe"

    def prepare(self, gate_up: Stored, down: Stored) -> dict[str, Tensor]:
        """ "w1.weight", "w1.scale", "w1.zero", "w1.bias", the same of w2: as `fused_marlin_moe` reads them."""
        assert self.scheme is not None
        bits, group = self.scheme.bits, _group(self.scheme)
        repack = function("vllm._custom_ops", "gptq_marlin_repack", "b_q_weight", "size_k", "size_n", "num_bits")
        scales = function(UTILS, "marlin_permute_scales", "s", "size_k", "size_n", "group_size")
        zeros = function(UTILS, "marlin_zero_points", "zp", "size_k", "size_n", "num_bits")
        biases = function(UTILS, "marlin_permute_bias", "s")
        packed: dict[str, list[Tensor]] = {}
        for name, experts, n, k in self.both(gate_up, down):
            for tensors in experts:
                parts = integers(self.scheme, tensors, n, k)
                scale = parts.scale.T.to(self.dtype).contiguous()
                one = {
                    "weight": repack(b_q_weight=words(parts.codes, bits), size_k=k, size_n=n, num_bits=bits),
                    "scale": scales(s=scale, size_k=k, size_n=n, group_size=group),
                }
                if parts.zero is not None:
                    codes = parts.zero.T.to(torch.int32).contiguous()
                    one["zero"] = zeros(zp=codes, size_k=codes.shape[0], size_n=n, num_bits=bits)
                if "bias" in tensors:
                    one["bias"] = biases(s=tensors["bias"].to(self.dtype))
                for suffix, tensor in one.items():
                    packed.setdefault(f"{name}.{suffix}", []).append(tensor)
        return {name: torch.stack(parts) for name, parts in packed.items()}

    def apply(self, x: Tensor, packed: Mapping[str, Tensor], weights: Tensor, ids: Tensor) -> Tensor:
        from vllm.model_executor.layers.fused_moe.activation import MoEActivation
        from vllm.scalar_type import scalar_types

        assert self.scheme is not None
        multiply = function(
            "vllm.model_executor.layers.fused_moe.experts.marlin_moe",
            "fused_marlin_moe",
            "hidden_states",
            "w1",
            "w2",
            "bias1",
            "bias2",
            "w1_scale",
            "w2_scale",
            "topk_weights",
            "topk_ids",
            "quant_type_id",
            "global_num_experts",
            "activation",
            "expert_map",
            "w1_zeros",
            "w2_zeros",
        )
        biased = scalar_types.uint4b8 if self.scheme.bits == 4 else scalar_types.uint8b128
        y: Tensor = multiply(
            hidden_states=x.contiguous(),
            w1=packed["w1.weight"],
            w2=packed["w2.weight"],
            bias1=packed.get("w1.bias"),
            bias2=packed.get("w2.bias"),
            w1_scale=packed["w1.scale"],
            w2_scale=packed["w2.scale"],
            w1_zeros=packed.get("w1.zero"),
            w2_zeros=packed.get("w2.zero"),
            topk_weights=weights.to(torch.float32).contiguous(),
            quant_type_id=(scalar_types.uint4 if "w1.zero" in packed else biased).id,
            activation=MoEActivation.SILU,
            **self.routing(ids),
        )
        return y


class TritonExperts(_Experts):
    name = "fused_experts"

    def prepare(self, gate_up: Stored, down: Stored) -> dict[str, Tensor]:
        """ "w1.weight" [E, 2I, H] and "w2.weight" [E, H, I] in the activations' dtype or e4m3; "w1.scale" float32, a
        number a block [E, N/128, K/128] or a row [E, N, 1]; "w1.bias"."""
        packed: dict[str, list[Tensor]] = {}
        for name, experts, n, k in self.both(gate_up, down):
            for tensors in experts:
                for suffix, tensor in self._one(tensors, n, k).items():
                    packed.setdefault(f"{name}.{suffix}", []).append(tensor)
        return {name: _stack(parts) for name, parts in packed.items()}

    def _one(self, tensors: Mapping[str, Tensor], n: int, k: int) -> dict[str, Tensor]:
        bias = {"bias": tensors["bias"].to(self.dtype)} if "bias" in tensors else {}
        if self.scheme is None or family(self.scheme) == "unquantized":
            return {"weight": tensors["weight"].to(self.dtype), **bias}
        parts = elements(self.scheme, tensors, n, k)
        scale = parts.scale if self.scheme.block is not None else parts.scale.expand(n).reshape(n, 1)
        return {"weight": parts.codes, "scale": scale, **bias}

    def apply(self, x: Tensor, packed: Mapping[str, Tensor], weights: Tensor, ids: Tensor) -> Tensor:
        from vllm.model_executor.layers.fused_moe.activation import MoEActivation

        multiply = function(
            "vllm.model_executor.layers.fused_moe.fused_moe",
            "fused_experts",
            "hidden_states",
            "w1",
            "w2",
            "topk_weights",
            "topk_ids",
            "activation",
            "global_num_experts",
            "expert_map",
            "quant_config",
        )
        y: Tensor = multiply(
            hidden_states=x.contiguous(),
            w1=packed["w1.weight"],
            w2=packed["w2.weight"],
            topk_weights=weights.to(torch.float32).contiguous(),
            activation=MoEActivation.SILU,
            quant_config=self._config(packed),
            **self.routing(ids),
        )
        return y

    def _config(self, packed: Mapping[str, Tensor]) -> Any:
        biases = {"w1_bias": packed.get("w1.bias"), "w2_bias": packed.get("w2.bias")}
        if "w1.scale" not in packed:
            make = function(
                "vllm.model_executor.layers.fused_moe.config", "biased_moe_quant_config", "w1_bias", "w2_bias"
            )
            return make(**biases)
        make = function(
            "vllm.model_executor.layers.fused_moe.config",
            "fp8_w8a8_moe_quant_config",
            "w1_scale",
            "w2_scale",
            "w1_bias",
            "w2_bias",
            "per_act_token_quant",
            "per_out_ch_quant",
            "block_shape",
        )
        assert self.scheme is not None
        rows = self.scheme.block is None
        return make(
            w1_scale=packed["w1.scale"],
            w2_scale=packed["w2.scale"],
            per_act_token_quant=rows,
            per_out_ch_quant=rows,
            block_shape=None if self.scheme.block is None else list(self.scheme.block),
            **biases,
        )


def _group(scheme: Scheme) -> int:
    return scheme.group_size if scheme.strategy == "group" and scheme.group_size else -1


def _stack(parts: Sequence[Tensor]) -> Tensor:
    """fp8 as bytes: not every device stacks it."""
    if parts[0].dtype == torch.float8_e4m3fn:
        return torch.stack([part.view(torch.uint8) for part in parts]).view(torch.float8_e4m3fn)
    return torch.stack(list(parts))
