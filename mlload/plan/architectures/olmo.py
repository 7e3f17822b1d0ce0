"""OLMo, from norms without weights to norms after each block."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.decoder import decoder
from mlload.plan.architectures.memory import everywhere, three_of_four
from mlload.plan.architectures.moe_blocks import experts, router
from mlload.plan.params import ParamSpec


def moe(c: ConfigView) -> Iterator[ParamSpec]:
    layers = range(c.layers)
    yield router(c, layers)
    yield from experts(c, layers, width=c.intermediate)


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
