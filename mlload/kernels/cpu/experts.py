"""Experts one after the other, each on the linear kernel that is chosen for its shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mlload.kernels.experts import ExpertShape
from mlload.kernels.selection import select
from mlload.quant.spec import Scheme

UNQUANTIZED = Scheme("unquantized", kind="none")


class ExpertByExpert:
    name, provider = "expert_by_expert", "torch"

    def __init__(self, scheme: Scheme | None, shape: ExpertShape, dtype: torch.dtype, device: str) -> None:
        self.shape = shape
        scheme = scheme or UNQUANTIZED
        sizes = {"gate_up": (2 * shape.inner, shape.hidden), "down": (shape.hidden, shape.inner)}
        self.linears = {part: select(scheme, n, k, dtype, device).kernel for part, (n, k) in sizes.items()}

    def prepare(
        self, gate_up: Sequence[Mapping[str, Tensor]], down: Sequence[Mapping[str, Tensor]]
    ) -> dict[str, Tensor]:
        """ "gate_up.3.weight", "down.3.bias", ...: what the linear kernels read, for each expert."""
        packed: dict[str, Tensor] = {}
        for part, experts in (("gate_up", gate_up), ("down", down)):
            for expert, tensors in enumerate(experts):
                stored = {name: tensor for name, tensor in tensors.items() if name != "bias"}
                ready = self.linears[part].prepare(stored)
                if "bias" in tensors:
                    ready = {**ready, "bias": tensors["bias"]}
                packed.update({f"{part}.{expert}.{name}": tensor for name, tensor in ready.items()})
        return packed

    def apply(self, x: Tensor, packed: Mapping[str, Tensor], weights: Tensor, ids: Tensor) -> Tensor:
        total = torch.zeros(x.shape[0], self.shape.hidden, dtype=torch.float32, device=x.device)
        parts: dict[tuple[str, int], dict[str, Tensor]] = {}
        for name, tensor in packed.items():
            part, expert, leaf = name.split(".", 2)
            parts.setdefault((part, int(expert)), {})[leaf] = tensor
        for expert in sorted(set(ids[ids >= 0].tolist())):
            token, choice = (ids == expert).nonzero(as_tuple=True)
            both = self._linear("gate_up", x[token], parts["gate_up", expert])
            out = self._linear("down", activate(both, self.shape), parts["down", expert])
            total.index_add_(0, token, out.float() * weights[token, choice].float()[:, None])
        return total.to(x.dtype)

    def _linear(self, part: str, x: Tensor, packed: Mapping[str, Tensor]) -> Tensor:
        bias = packed.get("bias")
        return self.linears[part].apply(x, packed, None if bias is None else bias.to(x.dtype))


def activate(both: Tensor, shape: ExpertShape) -> Tensor:
    """[rows, 2I] -> [rows, I]."""
    if shape.activation == "swiglu_oai":
        gate = both[..., 0::2].float().clamp(max=shape.limit)
        up = both[..., 1::2].float().clamp(-shape.limit, shape.limit)
        return (gate * torch.sigmoid(1.702 * gate) * (up + 1)).to(both.dtype)
    gate, up = both.float().chunk(2, -1)
    return (gate * torch.sigmoid(gate) * up).to(both.dtype)
