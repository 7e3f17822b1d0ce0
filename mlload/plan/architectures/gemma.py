"""Gemma's text models up to 3."""

from __future__ import annotations

from functools import partial

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.attention import AttentionSpec
from mlload.plan.architectures.decoder import decoder
from mlload.plan.architectures.memory import everywhere, split

biased = partial(decoder, qkv_bias="attention_bias", out_bias="attention_bias")


def alternating(c: ConfigView) -> tuple[AttentionSpec, ...]:
    """Windows in the layers that `layer_types` names; before there was such a field, in the even ones."""
    types = c.items("layer_types")
    near = [i for i, t in enumerate(types) if t == "sliding_attention"] if types else range(0, c.layers, 2)
    return split(c, near, c.size("sliding_window"))


def five_of_six(c: ConfigView) -> tuple[AttentionSpec, ...]:
    """Windows in all layers but every `sliding_window_pattern`-th."""
    types = c.items("layer_types")
    pattern = c.size("sliding_window_pattern") or 6
    if types:
        near = [i for i, t in enumerate(types) if t == "sliding_attention"]
    else:
        near = [i for i in range(c.layers) if (i + 1) % pattern]
    return split(c, near, c.size("sliding_window"))


gemma2 = biased(
    after_attention=("post_attention_layernorm",),
    before_mlp="pre_feedforward_layernorm",
    after_mlp=("post_feedforward_layernorm",),
    own_head=False,
)
gemma3 = biased(
    qk_norm=True,
    after_attention=("post_attention_layernorm",),
    before_mlp="pre_feedforward_layernorm",
    after_mlp=("post_feedforward_layernorm",),
)

ARCHITECTURES = (
    Architecture("gemma", biased(), everywhere),
    Architecture("gemma2", gemma2, alternating),
    Architecture("gemma3_text", gemma3, five_of_six),
)
