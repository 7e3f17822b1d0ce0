"""The layers that own a cache, as the engine's allocator sees them: one specification a class of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from mlload.plan.architectures import AttentionSpec
from mlload.plan.kv import state_bytes, token_bytes

CacheKind = Literal["full", "sliding", "chunked", "mla", "state"]
KINDS: dict[str, CacheKind] = {
    "full": "full",
    "sliding": "sliding",
    "chunked": "chunked",
    "mla": "mla",
    "linear": "state",
    "ssm": "state",
}


class CacheLayers(NamedTuple):
    """Layers of the whole model with equal caches, as one tensor-parallel rank holds them.

    layers:      their numbers; a layer that reuses another's cache owns none and is not here
    token_bytes: of one position in one layer; 0 for states
    state_bytes: of one sequence in one layer; 0 for positions
    window:      tokens that a sliding or chunked layer looks at
    """

    kind: CacheKind
    layers: tuple[int, ...]
    token_bytes: int
    state_bytes: int
    window: int | None


def cache_layers(
    attention: Sequence[AttentionSpec], tp: int, *, dtype: str, kv_dtype: str, ssm_dtype: str | None = None
) -> tuple[CacheLayers, ...]:
    """One entry a class, in the order of the architecture; dtypes as for `kv_classes`."""
    kept = {"model": dtype, "ssm": ssm_dtype or dtype}
    found = []
    for group in attention:
        kind = KINDS.get(group.kind)
        shared = frozenset(group.shares)
        own = tuple(layer for layer in group.layers if layer not in shared)
        if kind is None or not own:
            continue
        window = group.window if kind in ("sliding", "chunked") else None
        entry = CacheLayers(kind, own, token_bytes(group, tp, kv_dtype), state_bytes(group, tp, 0, kept), window)
        if entry.token_bytes or entry.state_bytes:
            found.append(entry)
    return tuple(found)
