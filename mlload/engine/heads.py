"""What an attention module of transformers counts by: heads of this rank instead of all of them."""

from __future__ import annotations

import copy
from typing import NamedTuple

from torch import nn

QUERY = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_query_heads")
KEYS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "kv_heads", "num_k_heads")
WIDTHS = ("hidden_size", "embed_dim", "split_size", "inner_dim", "all_head_size", "attn_hidden_size", "hidden_dim")


class Heads(NamedTuple):
    """query and keys: heads of the whole model and of this rank; keys 0 where there are none to share."""

    query: int
    query_here: int
    keys: int
    keys_here: int
    head_dim: int


def divide_heads(module: nn.Module, heads: Heads) -> None:
    """The module counts what it holds: its own attributes, and those of a copy of its config.

    transformers reads head counts from either, and sizes from the tensors where it can (`view(..., -1, head_dim)`).
    """
    width = heads.query * heads.head_dim
    keys, keys_here = heads.keys or heads.query, heads.keys_here or heads.query_here
    for names, whole, here in (
        (QUERY, heads.query, heads.query_here),
        (KEYS, keys, keys_here),
        (WIDTHS, width, heads.query_here * heads.head_dim),
    ):
        for name in names:
            if getattr(module, name, None) == whole:
                setattr(module, name, here)
    if hasattr(module, "num_key_value_groups"):
        module.num_key_value_groups = heads.query_here // keys_here  # type: ignore[assignment]
    if hasattr(module, "kv_dim"):
        module.kv_dim = keys_here * heads.head_dim  # type: ignore[assignment]
    config = getattr(module, "config", None)
    if config is not None:
        own = copy.copy(config)
        for names, whole, here in ((QUERY, heads.query, heads.query_here), (KEYS, heads.keys, heads.keys_here)):
            for name in names:
                if whole and own.__dict__.get(name) == whole:
                    own.__dict__[name] = here
        module.config = own
