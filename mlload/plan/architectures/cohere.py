"""Cohere's Command models: one norm, attention and MLP side by side, a head that is always tied."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.blocks import LAYER, norm
from mlload.plan.architectures.decoder import decoder
from mlload.plan.architectures.memory import everywhere, three_of_four
from mlload.plan.params import ParamSpec, Part

base = decoder(qkv_bias="attention_bias", out_bias="attention_bias", before_mlp="input_layernorm", own_head=False)


def build(c: ConfigView) -> Iterator[ParamSpec]:
    yield from base(c)
    if c.flag("use_qk_norm"):
        # A norm with weights of its own per head, divided with the heads.
        q, k = Part("q", c.heads), Part("k", c.kv_heads, 1, "kv")
        for name, part in (("q_norm", q), ("k_norm", k)):
            spec = norm(f"{LAYER}.self_attn.{name}", c.head_dim, range(c.layers), kind="LayerNorm")
            yield replace(spec, shape=(part.length, c.head_dim), axes=("N", ""), style="column", parts=(part,))


ARCHITECTURES = (
    Architecture("cohere", build, everywhere),
    Architecture("cohere2", base, three_of_four),
)
