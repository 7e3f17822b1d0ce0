"""What each group of layers remembers of the past: the facts that KV-cache arithmetic needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from mlload.plan.params import Part

AttentionKind = Literal["full", "sliding", "chunked", "mla", "linear", "ssm", "none"]


class StateSpec(NamedTuple):
    """One tensor of fixed size that a sequence owns in a recurrent layer.

    name:  "conv" (the last inputs of a causal convolution), "ssm" (the recurrent state)
    parts: runs of the axis that tensor parallelism divides, as for weights: Mamba2's conv state is
           (x, B, C), whose B and C have n_groups units and are shared like KV heads ("kv") when tp exceeds them
    rest:  product of the other dims (kernel - 1 for conv, head_dim x state for ssm)
    dtype: "model", a dtype that the class forces ("F32"), or "ssm": as the engine's setting for recurrent
           states says, the model's by default
    """

    name: str
    parts: tuple[Part, ...]
    rest: int
    dtype: str = "model"


class AttentionSpec(NamedTuple):
    """Layers that share one kind of memory. Sizes are of the whole model, not per rank.

    kind:       "full": keys and values of every position, [kv_heads, head_dim] and [kv_heads, v_head_dim]
                "sliding": the same, of the last `window` positions
                "chunked": the same, of the current chunk of `window` positions
                "mla": one latent vector of `latent` values a position, whole on every rank
                "linear", "ssm": no positions at all, `states` of fixed size per sequence
                "none": layers that remember nothing (MLP-only layers, encoders)
    layers:     layer numbers
    heads:      query heads
    latent:     kv_lora_rank + qk_rope_head_dim
    index_dim:  extra values a position for a sparse-attention indexer, one byte each with scales apart; 0 = none
    states:     of recurrent layers
    shares:     layers whose cache is that of an earlier layer, so that they own none (Gemma's KV sharing)
    """

    kind: AttentionKind
    layers: Sequence[int]
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0
    window: int | None = None
    latent: int = 0
    index_dim: int = 0
    states: tuple[StateSpec, ...] = ()
    shares: Sequence[int] = ()
