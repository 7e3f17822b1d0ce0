"""What a rank's rows need before they are the module's (`ParamSpec.transforms`)."""

from __future__ import annotations

import torch
from torch import Tensor

from mlload.checkpoint.finding import MlloadError


def transform(rows: Tensor, steps: tuple[str, ...]) -> Tensor:
    """rows [N, ...] with each step carried out, in order. Packed rows move as they are."""
    for step in steps:
        name, _, size = step.partition(":")
        if name != "unpair_rope":
            raise MlloadError(f"no loader knows the transform {step!r}", exit_code=3)
        rows = rows[unpaired(rows.shape[0], int(size), rows.device)]
    return rows


def unpaired(n: int, head: int, device: torch.device) -> Tensor:
    """Row numbers that undo GGUF's order: in each head of `head` rows, rows 0, 2, 4, ... are its first half."""
    within = torch.arange(head, device=device).reshape(head // 2, 2).T.reshape(-1)
    return (torch.arange(0, n, head, device=device)[:, None] + within).reshape(-1)
