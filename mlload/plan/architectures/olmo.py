"""OLMo, from norms without weights to norms after each block."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.attention import AttentionSpec
from mlload.plan.architectures.decoder import decoder
from mlload.plan.architectures.memory import everywhere, split
from mlload.plan.architectures.moe_blocks import experts, router
from mlload.plan.params import ParamSpec


def moe(c: ConfigView) -> Iterator[ParamSpec]:
    layers = range(c.layers)
    yield router(c, layers)
    yield from experts(c, layers, width=c.intermediate)


def three_of_four(c: ConfigView) -> tuple[AttentionSpec, ...]:
    """Windows as `layer_types` says, else in all layers but every fourth."""
    types = c.items("layer_types")
    if types:
        near = [i for i, t in enumerate(types) if t == "sliding_attention"]
    else:
        near = [i for i in range(c.layers) if (i + 1) % 4]
    return split(c, near, c.size("sliding_window"))


post_norm = decoder(
    qkv_bias="attention_bias",
    out_bias="attention_bias",
    whole_qk_norm=True,
    before_attention=None,
    after_attention=("post_attention_layernorm",),
    before_mlp=None,
    after_mlp=("post_feedforward_layernorm",),
)

ARCHITECTURES = (
    Architecture("olmo", decoder(qkv_bias="attention_bias", out_bias="attention_bias", norms=False), everywhere),
    Architecture("olmo2", post_norm, everywhere),
    Architecture("olmo3", post_norm, three_of_four),
    Architecture(
        "olmoe",
        decoder(qkv_bias="attention_bias", out_bias="attention_bias", whole_qk_norm=True, mlp=moe),
        everywhere,
    ),
)
