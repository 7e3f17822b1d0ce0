"""Attention whose projections are cut: what it counts by, and norms that span all heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from mlload.engine.alibi import own_positions
from mlload.engine.heads import Heads, divide_heads
from mlload.engine.parts import Part
from mlload.plan.cutting import share
from mlload.quant.layers.linear import ParallelLinear
from mlload.quant.layers.norm import GatheredNorm

if TYPE_CHECKING:
    from mlload.engine.build import Builder


def divide_attention(builder: Builder, parts: list[Part]) -> None:
    """Attention modules whose projections are cut count their own heads."""
    if builder.plan.mesh.tp == 1:
        return
    found: dict[str, dict[str, tuple[int, int, int]]] = {}
    first: dict[str, int] = {}
    for part in parts:
        spec = part.param.spec
        if spec.component != "attention" or spec.style != "column" or part.at.size == 1:
            continue
        module = part.target.rpartition(".")[0].rpartition(".")[0]
        for piece in spec.parts:
            if piece.unit > 1:
                held = share(piece, part.at.size, part.at.rank)
                here = held.allocated
                role = piece.role if piece.role in ("k", "v") else "q"
                if role == "q":
                    first[module] = held.start // piece.unit
                found.setdefault(module, {}).setdefault(
                    role, (piece.length // piece.unit, here // piece.unit, piece.unit)
                )
    for module, roles in found.items():
        if "q" not in roles:
            continue
        query, keys = roles["q"], roles.get("k", (0, 0, 0))
        attention = builder.model.get_submodule(module)
        divide_heads(attention, Heads(query[0], query[1], keys[0], keys[1], query[2]))
        own_positions(attention, query[0], first[module], query[1])
        for name, child in list(attention.named_children()):
            _wide_norm(builder, attention, name, child, query, keys)


def _wide_norm(
    builder: Builder,
    attention: nn.Module,
    name: str,
    child: nn.Module,
    query: tuple[int, int, int],
    keys: tuple[int, int, int],
) -> None:
    """A norm over all heads of q or k, where the others' channels are needed too."""
    weight = getattr(child, "weight", None)
    if isinstance(child, ParallelLinear) or weight is None or weight.dim() != 1:
        return
    for whole, here, width in (query, keys):
        if whole > 1 and weight.numel() == whole * width and whole > here:
            copies = builder.group.size * here // whole
            setattr(attention, name, GatheredNorm(child, here * width, copies, builder.group))
            return
