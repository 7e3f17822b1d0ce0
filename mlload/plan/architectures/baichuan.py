"""Baichuan: Llama with q, k and v in one tensor called W_pack."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.blocks import LAYER, embedding, fused_qkv, gated_mlp, head, norm, param
from mlload.plan.architectures.memory import everywhere
from mlload.plan.params import ParamSpec


def baichuan(c: ConfigView) -> Iterator[ParamSpec]:
    layers = range(c.layers)
    yield embedding(c)
    yield norm(f"{LAYER}.input_layernorm", c.hidden, layers)
    yield from fused_qkv(c, layers, name="W_pack", kv_heads=c.heads)
    table = f"{LAYER}.self_attn.rotary_emb.inv_freq"
    yield param(table, (c.head_dim // 2,), layers, engine="", optional=True, component="attention")
    yield norm(f"{LAYER}.post_attention_layernorm", c.hidden, layers)
    yield from gated_mlp(c, layers)
    yield norm("model.norm", c.hidden, stage="last")
    yield head(c)


ARCHITECTURES = (Architecture("baichuan", baichuan, everywhere),)
