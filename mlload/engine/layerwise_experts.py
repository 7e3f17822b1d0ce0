"""Experts that a class stacks in one tensor, read from the disk one at a time.

T = tokens of all samples, H = hidden size, top = experts that a token chooses. A layer with experts is run in two
passes: one that keeps what the experts would see and who was chosen, one that takes their outputs from a buffer.
Between the two each expert is in memory once, whatever the number of samples, and no two are there together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mlload.plan.model import Model
from mlload.plan.params import ParamSpec

Mode = Literal["direct", "keep", "replay", "probe"]


class Expert(NamedTuple):
    """first: gate and up (or both as one, or up alone), each [I, H]; down: [H, I]; names: disk tensor of each"""

    first: tuple[nn.Linear, ...]
    down: nn.Linear
    names: dict[nn.Linear, str]


class RoutedExperts(nn.Module):
    """In the place of a class's experts module. What is kept of all tokens is on the CPU.

    original: that module, which knows how gate and up are combined; its stacks stay on the meta device
    linears: expert -> role -> disk tensor; read: disk tensor -> its values
    weight: [1, H], what the columns of gate and up are multiplied by: where a scale was folded into the norm before

    mode "direct" computes; "keep" keeps its inputs and gives zeros; "replay" gives the rows of `outputs` in turn;
    "probe" gives a cheap function of input, choice and shares that does not change when a fold is right.
    """

    weight: Tensor

    def __init__(
        self,
        original: nn.Module,
        linears: dict[int, dict[str, str]],
        read: Callable[[str], Tensor],
        hidden: int,
        device: torch.device,
    ) -> None:
        super().__init__()
        # Not as a child: nobody is to fill it.
        self.__dict__["original"] = original
        self.linears = linears
        self.read = read
        self.register_buffer("weight", torch.ones(1, hidden, device=device), persistent=False)
        self.mode: Mode = "direct"
        self.seen = torch.empty(0, hidden)
        self.outputs = torch.empty(0, hidden)
        self._choices: list[Tensor] = []
        self._shares: list[Tensor] = []
        self._at = 0

    def forward(self, hidden: Tensor, index: Tensor, shares: Tensor) -> Tensor:
        """hidden [.., H], index and shares [.., top] -> [.., H]."""
        rows = hidden.reshape(-1, hidden.shape[-1])
        index, shares = index.reshape(len(rows), -1), shares.reshape(len(rows), -1)
        here = slice(self._at, self._at + len(rows))
        self._at = here.stop
        if self.mode == "keep":
            self.seen[here] = rows
            self._choices.append(index.cpu())
            self._shares.append(shares.float().cpu())
            return torch.zeros_like(hidden)
        if self.mode == "replay":
            return self.outputs[here].reshape(hidden.shape).to(hidden.device, copy=True)
        if self.mode == "probe":
            chosen = shares * (1 + index / max(1, len(self.linears)))
            return (rows * self.weight * chosen.sum(-1, keepdim=True)).reshape(hidden.shape)
        total = torch.zeros_like(rows)
        for number in torch.unique(index).tolist():
            token, place = torch.where(index == number)
            total.index_add_(0, token, self.output(self.expert(number), rows[token]) * shares[token, place, None])
        return total.reshape(hidden.shape)

    @contextmanager
    def as_mode(self, mode: Mode) -> Iterator[None]:
        before, self.mode, self._at = self.mode, mode, 0
        if mode == "keep":
            self._choices, self._shares = [], []
        try:
            yield
        finally:
            self.mode, self._at = before, 0

    def routed(self, number: int) -> tuple[Tensor, Tensor]:
        """Of what was kept: the rows [t] that chose an expert, and its share [t] of each one's output."""
        index, shares = torch.cat(self._choices), torch.cat(self._shares)
        token, place = torch.where(index == number)
        return token, shares[token, place]

    def expert(self, number: int) -> Expert:
        roles = self.linears[number]
        names: dict[nn.Linear, str] = {}

        def linear(role: str) -> nn.Linear:
            values = self.read(roles[role]).to(self.weight.device).float()
            made = nn.Linear(values.shape[1], values.shape[0], bias=False, device="meta")
            made.weight = nn.Parameter(values * self.weight if role != "down" else values.clone(), requires_grad=False)
            names[made] = roles[role]
            return made

        first = tuple(linear(role) for role in ("gate_up", "gate", "up") if role in roles)
        return Expert(first, linear("down"), names)

    def gated(self, expert: Expert, x: Tensor) -> Tensor:
        """What `down` sees, [t, I]."""
        both = torch.cat([F.linear(x, linear.weight) for linear in expert.first], -1)
        original: Any = self.__dict__["original"]
        return torch.as_tensor(original._apply_gate(both) if original.has_gate else original.act_fn(both))

    def output(self, expert: Expert, x: Tensor) -> Tensor:
        """[t, H], before the share."""
        return F.linear(self.gated(expert, x), expert.down.weight)

    def all_outputs(self) -> None:
        """`outputs` of all that was kept, expert by expert."""
        self.outputs.zero_()
        for number in self.linears:
            token, share = self.routed(number)
            if len(token):
                self.add_outputs(self.expert(number), token, share)

    def add_outputs(self, expert: Expert, token: Tensor, share: Tensor) -> None:
        """What an expert makes of the rows `token` of what was kept, times its share, to `outputs`."""
        found = self.output(expert, self.seen[token].to(self.weight.device)).cpu()
        self.outputs.index_add_(0, token, found * share[:, None])

    def forget(self) -> None:
        """What was kept."""
        self.seen, self.outputs = self.seen.new_empty(0), self.outputs.new_empty(0)
        self._choices, self._shares = [], []


def runs(original: nn.Module) -> bool:
    """Whether a class's experts module is one that RoutedExperts can stand in for."""
    plain = getattr(original, "is_concatenated", False) and not getattr(original, "has_post_expert_norm", False)
    return hasattr(original, "_apply_gate") and plain and not getattr(original, "has_bias", False)


def expert_tensors(model: Model) -> dict[str, tuple[int, str]]:
    """Weights on disk of experts stored one by one -> (expert, role)."""
    found: dict[str, tuple[int, str]] = {}
    for param in model.params:
        spec = param.spec
        if param.experts is None or spec.draft:
            continue
        for layer in spec.layers or ():
            path = spec.module.replace("{layer}", str(layer))
            for expert in param.experts:
                found[path.replace("{expert}", str(expert)) + ".weight"] = (expert, role_of(spec))
    return found


def role_of(spec: ParamSpec) -> str:
    """Of an expert's linear: "gate_up", "gate", "up" or "down"."""
    if spec.style == "row":
        return "down"
    roles = [part.role for part in spec.parts]
    if len(roles) > 1:
        return "gate_up"
    return "gate" if roles == ["gate"] else "up"
