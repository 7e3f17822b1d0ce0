"""gpt-oss: attention sinks, and experts stacked with inputs before outputs, gate and up row by row in turn."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.attention import AttentionSpec
from mlload.plan.architectures.blocks import LAYER, embedding, gqa, head, norm, param
from mlload.plan.architectures.memory import split
from mlload.plan.architectures.moe_blocks import router, stacked_experts
from mlload.plan.params import ParamSpec, Part


def build(c: ConfigView) -> Iterator[ParamSpec]:
    layers, attention = range(c.layers), f"{LAYER}.self_attn"
    bias = c.flag("attention_bias", True)
    yield embedding(c, engine="model.embedding")
    yield norm(f"{LAYER}.input_layernorm", c.hidden, layers)
    yield from gqa(c, layers, qkv_bias=bias, out_bias=bias)
    yield param(
        f"{attention}.sinks",
        (c.heads,),
        layers,
        axes=("N",),
        style="column",
        parts=(Part("", c.heads),),
        component="attention",
    )
    yield norm(f"{LAYER}.post_attention_layernorm", c.hidden, layers)
    yield router(c, layers, f"{LAYER}.mlp.router", bias=True)
    yield from stacked_experts(
        c,
        layers,
        width=c.intermediate,
        axes=("E", "K", "N"),
        groups=c.intermediate,
        bias="_bias",
        kind="GptOssRoutedExperts",
    )
    yield norm("model.norm", c.hidden, stage="last")
    yield head(c)


def memory(c: ConfigView) -> tuple[AttentionSpec, ...]:
    """Windows as `layer_types` says, else in the even layers."""
    types = c.items("layer_types")
    near = [i for i, t in enumerate(types) if t == "sliding_attention"] if types else range(0, c.layers, 2)
    return split(c, near, c.size("sliding_window"))


ARCHITECTURES = (Architecture("gpt_oss", build, memory),)
