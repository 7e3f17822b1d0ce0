"""Which layers remember what, from the fields that configs use to say it."""

from __future__ import annotations

from collections.abc import Sequence

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.attention import AttentionKind, AttentionSpec


def kv(
    c: ConfigView,
    layers: Sequence[int],
    kind: AttentionKind = "full",
    *,
    window: int | None = None,
    heads: int = 0,
    kv_heads: int = 0,
    head_dim: int = 0,
) -> AttentionSpec:
    """Layers that keep keys and values."""
    d = head_dim or c.head_dim
    return AttentionSpec(
        kind, layers, heads=heads or c.heads, kv_heads=kv_heads or c.kv_heads, head_dim=d, v_head_dim=d, window=window
    )


def rest(c: ConfigView, layers: Sequence[int]) -> tuple[int, ...]:
    """The model's other layers."""
    known = frozenset(layers)
    return tuple(i for i in range(c.layers) if i not in known)


def everywhere(c: ConfigView) -> tuple[AttentionSpec, ...]:
    """Every layer looks at every position."""
    return (kv(c, range(c.layers)),)


def split(c: ConfigView, sliding: Sequence[int], window: int | None) -> tuple[AttentionSpec, ...]:
    """`sliding` layers look at the last `window` positions, the others at all."""
    if not window:
        return everywhere(c)
    near = frozenset(sliding)
    far = tuple(i for i in range(c.layers) if i not in near)
    groups = (kv(c, far), kv(c, tuple(i for i in range(c.layers) if i in near), "sliding", window=window))
    return tuple(group for group in groups if group.layers)


def by_layer_types(c: ConfigView) -> tuple[AttentionSpec, ...]:
    """As `layer_types` says; where it is absent a `sliding_window` holds for every layer."""
    window = c.size("sliding_window") or None
    types = c.items("layer_types")
    sliding = [i for i, t in enumerate(types) if t == "sliding_attention"] if types else range(c.layers)
    return split(c, sliding, window)


def three_of_four(c: ConfigView) -> tuple[AttentionSpec, ...]:
    """Windows as `layer_types` says, else in all layers but every fourth."""
    types = c.items("layer_types")
    if types:
        near = [i for i, t in enumerate(types) if t == "sliding_attention"]
    else:
        near = [i for i in range(c.layers) if (i + 1) % 4]
    return split(c, near, c.size("sliding_window"))
