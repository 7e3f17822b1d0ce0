"""Routed experts of one layer, quantized: packed in memory; on a GPU a grouped kernel runs all that were chosen at
once where one can, else they are multiplied one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mlload.kernels.experts import ExpertsKernel
from mlload.kernels.kernel import LinearKernel
from mlload.quant.layers.group import ALONE, Group
from mlload.quant.layers.grouped_experts import Stack, ask, joined, routed_here
from mlload.quant.layers.kernels import as_found, prepared
from mlload.quant.layers.method import KernelUse
from mlload.quant.spec import Scheme

Role = str  # "gate_up", "gate", "up", "down"


class ExpertTensors(NamedTuple):
    """One linear of one expert, or (expert None) of all experts stacked. n, k: of this rank.

    tensors: parameters by suffix; the bias is "bias". scheme None: tensors["weight"] is a plain weight, `transposed`
    where it is stored [K, N]
    """

    role: Role
    expert: int | None
    scheme: Scheme | None
    n: int
    k: int
    tensors: dict[str, nn.Parameter]
    transposed: bool = False


class Packed(NamedTuple):
    kernel: LinearKernel | None
    tensors: Mapping[str, Tensor]
    bias: Tensor | None
    transposed: bool

    def __call__(self, x: Tensor, bias: bool = True) -> Tensor:
        added = self.bias if bias else None
        if self.kernel is None:
            weight = self.tensors["weight"]
            return F.linear(x, weight.T if self.transposed else weight, added)
        return self.kernel.apply(x, self.tensors, added)


class QuantizedExperts(nn.Module):
    """Stands in for a transformers experts module: forward(hidden, top_k_index, top_k_weights).

    original: that module without its weights; it knows how gate and up are combined
    held:     experts of this rank: all of them, each cut, or with expert parallelism some, each whole
    Ranks' outputs are summed once, after all experts.
    """

    def __init__(
        self,
        original: nn.Module,
        held: range,
        linears: list[ExpertTensors],
        dtype: torch.dtype,
        group: Group = ALONE,
        *,
        whole: bool = False,
    ) -> None:
        super().__init__()
        self.original = original
        self.held = held
        # A bias of a row-parallel half is whole on every rank and may be added once.
        self.adds_bias = whole or group.rank == 0
        self.dealt_out = whole
        self.linears = linears
        self.dtype = dtype
        self.group = group
        self.packed: dict[tuple[int, Role], Packed] = {}
        self.kernel: ExpertsKernel | None = None
        self.stacks: dict[str, Tensor] = {}
        self.uses: set[KernelUse] = set()
        for number, linear in enumerate(linears):
            for suffix, param in linear.tensors.items():
                self.register_parameter(f"stored_{number}_{suffix.replace('.', '__').lstrip('_')}", param)

    def process_weights_after_loading(self) -> None:
        """One kernel for all experts, or one for each one's linears; the stored tensors are forgotten."""
        device = next(param.device for linear in self.linears for param in linear.tensors.values())
        stacks = (
            Stack(linear.role, linear.scheme and as_found(linear.scheme, linear.tensors), linear.n, linear.k)
            for linear in self.linears
        )
        chosen, declined = ask(
            stacks,
            len(self.held),
            self._gated,
            self.original,
            self.dtype,
            device,
            dealt_out=self.dealt_out,
            one_order=self._one_order(),
        )
        if chosen is not None:
            self._group(chosen.kernel)
            self.uses.add(KernelUse(chosen.kernel.name, chosen.provider, True, chosen.declined))
        for number, linear in enumerate(self.linears):
            if chosen is None:
                for expert in self._experts_of(linear):
                    self.packed[expert, linear.role] = self._pack(linear, self._stored(linear, expert), expert)
            for suffix in linear.tensors:
                self.register_parameter(f"stored_{number}_{suffix.replace('.', '__').lstrip('_')}", None)
            linear.tensors.clear()
        self.uses = {use._replace(declined=(*declined, *use.declined)) for use in self.uses}

    def _one_order(self) -> bool:
        """Whether gate and up of each expert, which become rows of one matrix, have one order of columns."""
        orders: dict[tuple[int, Role], Tensor] = {}
        for linear in self.linears:
            index = next((suffix for suffix in linear.tensors if suffix.endswith("g_idx")), None)
            if index is not None and linear.role in ("gate", "up"):
                for expert in self._experts_of(linear):
                    orders[expert, linear.role] = self._stored(linear, expert)[index]
        gates = ((expert, order) for (expert, role), order in orders.items() if role == "gate")
        return all((expert, "up") in orders and torch.equal(order, orders[expert, "up"]) for expert, order in gates)

    def _experts_of(self, linear: ExpertTensors) -> Iterable[int]:
        return self.held if linear.expert is None else (linear.expert,)

    def _stored(self, linear: ExpertTensors, expert: int) -> dict[str, Tensor]:
        """One expert's tensors by suffix, in the orientation [N, K] where they are plain."""
        stacked, place = linear.expert is None, expert - self.held.start
        tensors = {
            suffix: param.data[place] if stacked and param.dim() and len(param) == len(self.held) else param.data
            for suffix, param in linear.tensors.items()
        }
        if "g_idx" in tensors and linear.scheme is not None and not linear.scheme.act_order:
            tensors["g_idx"] = tensors["g_idx"] - tensors["g_idx"].min()
        return tensors

    def _group(self, kernel: ExpertsKernel) -> None:
        stored: dict[Role, dict[int, dict[str, Tensor]]] = {}
        sizes: dict[Role, ExpertTensors] = {}
        for linear in self.linears:
            sizes[linear.role] = linear
            for expert in self._experts_of(linear):
                tensors = self._stored(linear, expert)
                if linear.transposed and linear.scheme is None:
                    tensors["weight"] = tensors["weight"].T
                if linear.role == "down" and not self.adds_bias:
                    tensors.pop("bias", None)
                stored.setdefault(linear.role, {})[expert] = tensors
        first: list[Mapping[str, Tensor]]
        if "gate_up" in stored:
            first = [stored["gate_up"][expert] for expert in self.held]
        else:
            gate, up, half = stored["gate"], stored["up"], sizes["gate"]
            first = [joined(half.scheme, gate[e], up[e], half.n, half.k) for e in self.held]
        self.kernel, self.stacks = kernel, kernel.prepare(first, [stored["down"][e] for e in self.held])
        for name, tensor in self.stacks.items():
            self.register_buffer(f"packed_{name.replace('.', '__')}", tensor, False)

    def _pack(self, linear: ExpertTensors, tensors: dict[str, Tensor], expert: int) -> Packed:
        bias = tensors.pop("bias", None)
        if linear.scheme is None:
            self._keep(expert, linear.role, tensors)
            return Packed(None, tensors, bias, linear.transposed)
        kernel, packed, use = prepared(linear.scheme, linear.n, linear.k, self.dtype, tensors)
        self.uses.add(use)
        self._keep(expert, linear.role, packed if bias is None else {**packed, "bias": bias})
        return Packed(kernel, packed, bias, False)

    def _keep(self, expert: int, role: Role, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self.register_buffer(f"packed_{expert}_{role}_{name.replace('.', '__').lstrip('_')}", tensor, False)

    def forward(self, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """hidden [T, H], index [T, top], weights [T, top] (or [T, E], by expert) -> [T, H]."""
        shape = hidden.shape
        rows = hidden.reshape(-1, shape[-1])
        index = index.reshape(rows.shape[0], -1)
        if self.kernel is not None:
            shares, ids = routed_here(index, weights, self.held.start, len(self.held))
            return self.group.sum(self.kernel.apply(rows, self.stacks, shares, ids)).reshape(shape)
        by_expert = weights.shape[-1] != index.shape[-1]
        total = torch.zeros_like(rows)
        for expert in torch.unique(index).tolist():
            if expert not in self.held:
                continue
            token, place = torch.where(index == expert)
            share = weights[token, expert] if by_expert else weights[token, place]
            out = self._expert(expert, rows[token]) * share[:, None]
            total.index_add_(0, token, out.to(total.dtype))
        return self.group.sum(total).reshape(shape)

    def _expert(self, expert: int, x: Tensor) -> Tensor:
        if (expert, "gate_up") in self.packed:
            both = self.packed[expert, "gate_up"](x)
        elif (expert, "gate") in self.packed:
            both = torch.cat([self.packed[expert, "gate"](x), self.packed[expert, "up"](x)], -1)
        else:
            both = self.packed[expert, "up"](x)
        return self.packed[expert, "down"](self._gated(both), bias=self.adds_bias)

    def _gated(self, both: Tensor) -> Tensor:
        original: Any = self.original
        if hasattr(original, "_apply_gate"):
            gated: Tensor = original._apply_gate(both)
            return gated
        gate, up = both.chunk(2, -1)
        return torch.as_tensor(original.act_fn(gate) * up)
