"""Fused experts as layers run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mlload.kernels.experts import ExpertShape
from mlload.kernels.triton import moe
from mlload.quant.spec import Scheme


class FusedExperts:
    name, provider = "fused_moe", "mlload"

    def __init__(self, scheme: Scheme | None, shape: ExpertShape, dtype: torch.dtype, native_fp8: bool) -> None:
        self.scheme, self.shape, self.dtype, self.native_fp8 = scheme, shape, dtype, native_fp8

    def prepare(
        self, gate_up: Sequence[Mapping[str, Tensor]], down: Sequence[Mapping[str, Tensor]]
    ) -> dict[str, Tensor]:
        """ "gate_up.weight", "down.scale", ...: stacked over experts, as `moe` reads them."""
        hidden, inner = self.shape.hidden, self.shape.inner
        both = {"gate_up": (gate_up, 2 * inner, hidden), "down": (down, hidden, inner)}
        packed: dict[str, Tensor] = {}
        for part, (experts, n, k) in both.items():
            stacked = moe.stack(self.scheme, experts, n, k, self.dtype, native_fp8=self.native_fp8)
            packed.update({f"{part}.{name}": tensor for name, tensor in stacked.tensors.items()})
        return packed

    def apply(self, x: Tensor, packed: Mapping[str, Tensor], weights: Tensor, ids: Tensor) -> Tensor:
        hidden, inner = self.shape.hidden, self.shape.inner
        gate_up = self._part("gate_up", packed, 2 * inner, hidden)
        down = self._part("down", packed, hidden, inner)
        activation, limit = self.shape.activation, self.shape.limit
        return moe.fused_moe(x, gate_up, down, weights, ids, activation=activation, limit=limit)

    def _part(self, part: str, packed: Mapping[str, Tensor], n: int, k: int) -> moe.Experts:
        tensors = {name.removeprefix(f"{part}."): t for name, t in packed.items() if name.startswith(f"{part}.")}
        return moe.Experts(n, k, tensors, moe.planes_of(self.scheme, k, self.native_fp8, tensors))
