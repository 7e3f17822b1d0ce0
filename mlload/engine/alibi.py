"""Positions that are added to the scores of each head (ALiBi): a rank takes those of its own heads.

The classes compute them once for all heads and hand them to every attention.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

POSITIONS = ("alibi", "position_bias")


def own_positions(attention: nn.Module, heads: int, first: int, count: int) -> None:
    """Cut what `attention` is called with to heads [first, first + count); nothing where it takes no such argument."""
    if count == heads or not any(name in inspect.signature(attention.forward).parameters for name in POSITIONS):
        return

    def cut(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        for name in (*POSITIONS, "attention_mask"):
            if isinstance(kwargs.get(name), Tensor):
                kwargs[name] = of_heads(kwargs[name], heads, first, count)
        return args, kwargs

    attention.register_forward_pre_hook(cut, with_kwargs=True)


def of_heads(bias: Tensor, heads: int, first: int, count: int) -> Tensor:
    """[heads, 1, T], [batch * heads, 1, T] or [batch, heads, S, T] -> the same of some heads. A mask that is one for
    all heads stays."""
    if bias.dim() == 4:
        return bias[:, first : first + count] if bias.shape[1] == heads else bias
    if bias.dim() == 3 and bias.shape[0] % heads == 0:
        return bias.view(-1, heads, *bias.shape[1:])[:, first : first + count].flatten(0, 1)
    return bias
