"""Experts in the stacks of their class, which are not quantized: on a GPU a grouped kernel reads the same stacks.

E = experts, H = hidden size, I = intermediate size of this rank. The class stays where it is, with its parameters; only
its forward is another. Left alone where it is not sum(weight * down(gated(gate_up(x)))) or no kernel takes it.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from mlload.kernels.choice.question import Declined
from mlload.quant.layers import grouped_experts
from mlload.quant.layers.grouped_experts import NAME, Asked, Stack, ask, routed_here
from mlload.quant.layers.method import KernelUse


class PlainExperts:
    """original: a transformers experts module whose stacks are this rank's; what it returns is summed elsewhere."""

    def __init__(self, original: nn.Module, dtype: torch.dtype) -> None:
        self.original: Any = original
        self.dtype = dtype
        self.uses: set[KernelUse] = set()

    def process_weights_after_loading(self) -> None:
        params = dict(self.original.named_parameters(recurse=False))
        device = next((param.device for param in params.values()), torch.device("cpu"))
        if not grouped_experts.asks(device):
            return
        chosen, declined = self._ask(params, device)
        if chosen is None:
            self.uses = {KernelUse("experts of the class", "transformers", True, declined)}
            return
        kernel, stacks = chosen.kernel, self._stacks(params)
        experts = stacks["down.weight"].shape[0]

        def forward(hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
            rows = hidden.reshape(-1, hidden.shape[-1])
            shares, ids = routed_here(index.reshape(len(rows), -1), weights.reshape(len(rows), -1), 0, experts)
            return kernel.apply(rows, stacks, shares, ids).reshape(hidden.shape)

        self.original.forward = forward
        self.uses = {KernelUse(kernel.name, chosen.provider, True, chosen.declined)}

    def _ask(self, params: dict[str, nn.Parameter], device: torch.device) -> Asked:
        reason = unlike_others(self.original, params)
        if reason is not None:
            return Asked(None, (Declined(NAME, reason),))
        experts, hidden, inner = params["down_proj"].shape
        if self.original.is_transposed:
            hidden, inner = inner, hidden
        found = (Stack("gate_up", None, 2 * inner, hidden), Stack("down", None, hidden, inner))
        return ask(found, experts, self.original._apply_gate, self.original, self.dtype, device)

    def _stacks(self, params: dict[str, nn.Parameter]) -> dict[str, Tensor]:
        stacks: dict[str, Tensor] = {}
        for part in ("gate_up", "down"):
            param = params[f"{part}_proj"]
            if self.original.is_transposed:
                # [E, K, N] as before to whoever looks, and [E, N, K] in memory.
                param.data = param.data.transpose(1, 2).contiguous().transpose(1, 2)
                stacks[f"{part}.weight"] = param.data.transpose(1, 2)
            else:
                stacks[f"{part}.weight"] = param.data
            if f"{part}_proj_bias" in params:
                stacks[f"{part}.bias"] = params[f"{part}_proj_bias"].data
        return stacks


def unlike_others(original: Any, params: dict[str, nn.Parameter]) -> str | None:
    """Why a class is not the one that transformers' own grouped implementations run; they ask the same attributes."""
    name = type(original).__name__
    accepts = inspect.signature(type(original).forward).parameters
    if not hasattr(original, "_apply_gate") or (len(accepts) < 4 and "args" not in accepts):
        return f"{name} routes in a way of its own"
    if not getattr(original, "has_gate", True) or getattr(original, "has_post_expert_norm", False):
        return f"{name} has no gate, or a norm behind its experts"
    known = {"gate_up_proj", "down_proj", "gate_up_proj_bias", "down_proj_bias"}
    if not {"gate_up_proj", "down_proj"} <= params.keys() <= known or not hasattr(original, "is_transposed"):
        return f"{name} keeps {', '.join(sorted(params))}"
    return None
