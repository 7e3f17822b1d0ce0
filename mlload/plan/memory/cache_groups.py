"""How vLLM divides the cache among layers: pages, blocks, groups and the pool that they share.

All groups draw blocks of one size from one pool. A block holds, for one group, `block_size` tokens
of every layer in it; a request takes blocks from every group. So a hybrid model pays for its
sliding layers in whole blocks, and for its recurrent layers in pages as large as attention's.

After vLLM 0.33.0: v1/core/kv_cache_planning.py (`get_kv_cache_groups`, `get_kv_cache_configs`),
v1/kv_cache_interface.py (each spec's `max_memory_usage_bytes`), platforms/interface.py
(`_align_hybrid_block_size`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlload.plan.memory.cache_layers import CacheKind, CacheLayers

# Tokens of a block unless the backend wants more: config/cache.py:185; a CPU takes 128 (platforms/cpu.py).
BLOCK_SIZE = 16
# Least block of a hybrid model with latent attention (platforms/interface.py:1091).
MLA_HYBRID_BLOCK = 128


def ceil_div(count: int, size: int) -> int:
    return -(-count // size)


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share one block table.

    pages:      (layer, bytes of its page); a page is one layer's part of a block
    block_size: tokens of a block; of no meaning for states
    window:     tokens that a sliding or chunked layer looks at
    states:     pages that a request holds in a recurrent layer: 1, or 2 with prefix caching
    """

    kind: CacheKind
    pages: tuple[tuple[int, int], ...]
    block_size: int
    window: int | None
    states: int = 1

    def blocks(self, tokens: int, in_flight: int) -> int:
        """Blocks that a request of `tokens` holds at most, while `in_flight` tokens are scheduled and not settled."""
        if self.kind == "state":
            return self.states
        if self.kind == "sliding":
            # One more: a window need not begin where a block does.
            return ceil_div(min((self.window or 1) - 1 + in_flight, tokens), self.block_size) + 1
        if self.kind == "chunked":
            return ceil_div(min((self.window or 1) + in_flight, tokens), self.block_size)
        return ceil_div(tokens, self.block_size)


@dataclass(frozen=True, slots=True)
class CachePlan:
    """groups:     of the whole model
    block_size:    tokens of an attention block
    aligned:       block_size was raised so that an attention page covers a recurrent state
    """

    groups: tuple[CacheGroup, ...]
    block_size: int
    aligned: bool = False

    def block_bytes(self, layers: range | None = None) -> int:
        """Bytes of one block of the pool on a rank that holds these layers (None = all): its widest group."""
        return max(
            (sum(page for layer, page in group.pages if layers is None or layer in layers) for group in self.groups),
            default=0,
        )

    def request_blocks(self, tokens: int, in_flight: int) -> int:
        """Blocks that one request of `tokens` needs, over all groups."""
        return sum(group.blocks(tokens, in_flight) for group in self.groups)

    def longest(self, blocks: int, in_flight: int, limit: int) -> int:
        """The longest request, up to `limit` tokens, that so many usable blocks hold; 0 when not even one token."""
        if self.request_blocks(1, in_flight) > blocks:
            return 0
        low, high = 1, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.request_blocks(middle, in_flight) <= blocks:
                low = middle
            else:
                high = middle - 1
        return low


def plan_cache(
    classes: Sequence[CacheLayers], *, block_size: int = BLOCK_SIZE, prefix_caching: bool = True
) -> CachePlan:
    """The groups of a model.

    prefix_caching: on unless told; vLLM then keeps two states of a recurrent layer a request. A model without any
                    attention has none.
    """
    attention = [entry for entry in classes if entry.kind != "state"]
    states = [entry for entry in classes if entry.kind == "state" and entry.state_bytes]
    if not attention:
        return CachePlan(_one_group(states, lambda entry: entry.state_bytes, block_size), block_size)
    block, aligned, state_page = block_size, False, 0
    if states:
        token = attention[0].token_bytes
        largest = max(entry.state_bytes for entry in states)
        step = max(block_size, MLA_HYBRID_BLOCK) if attention[0].kind == "mla" else block_size
        needed = step * ceil_div(largest, step * token)
        block, aligned = max(block_size, needed), needed > block_size
        state_page = block * token
    held = 2 if prefix_caching else 1
    if not states and _uniform(attention):
        return CachePlan(_one_group(attention, lambda entry: block * entry.token_bytes, block), block)
    return CachePlan(_mixed(attention, states, block, state_page, held), block, aligned)


def _uniform(attention: Sequence[CacheLayers]) -> bool:
    """Whether all layers always need the same number of tokens: full ones, or one window."""
    if all(entry.kind in ("full", "mla") for entry in attention):
        return True
    return len({(entry.kind, entry.window) for entry in attention}) == 1


def _one_group(
    classes: Sequence[CacheLayers], page: Callable[[CacheLayers], int], block: int
) -> tuple[CacheGroup, ...]:
    if not classes:
        return ()
    pages = sorted((layer, page(entry)) for entry in classes for layer in entry.layers)
    first = classes[0]
    kind: CacheKind = "full" if {entry.kind for entry in classes} == {"full", "mla"} else first.kind
    return (CacheGroup(kind, tuple(pages), block, first.window),)


def _mixed(
    attention: Sequence[CacheLayers], states: Sequence[CacheLayers], block: int, state_page: int, held: int
) -> tuple[CacheGroup, ...]:
    """Kinds side by side: every page takes the size of the largest, every group the same number of layers."""
    largest = max([block * entry.token_bytes for entry in attention] + [state_page])
    # Layers of another size are another specification, and so another group, though their pages are equal.
    buckets: dict[tuple[CacheKind, int, int | None, int], list[int]] = {}
    for entry in attention:
        page = block * entry.token_bytes
        # A smaller page grows by more tokens where that comes out even, else it is padded.
        tokens = block * (largest // page) if largest % page == 0 else block
        buckets.setdefault((entry.kind, tokens, entry.window, entry.token_bytes), []).extend(entry.layers)
    for entry in states:
        buckets.setdefault(("state", block, None, entry.state_bytes), []).extend(entry.layers)
    least = min(len(layers) for layers in buckets.values())
    most = max(len(layers) for layers in buckets.values())
    size = most if most < least * 1.5 else least
    groups = []
    for (kind, tokens, window, _), layers in buckets.items():
        layers = sorted(layers)
        count = ceil_div(len(layers), size)
        for index in range(count):
            # Dealt in turn, so that every pipeline stage has some of each group.
            pages = tuple((layer, largest) for layer in layers[index::count])
            groups.append(CacheGroup(kind, pages, tokens, window, held if kind == "state" else 1))
    return tuple(groups)
