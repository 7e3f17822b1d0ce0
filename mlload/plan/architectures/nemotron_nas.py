"""Nemotron from architecture search (DeciLM): Llama layers whose sizes differ, and some that lack a block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.attention import AttentionSpec
from mlload.plan.architectures.blocks import LAYER, embedding, gated_mlp, gqa, head, norm
from mlload.plan.architectures.memory import kv, rest
from mlload.plan.params import ParamSpec

MULTIPLE = 256


def blocks(c: ConfigView, what: str) -> list[dict[str, Any]]:
    """The config of each layer's "attention" or "ffn"."""
    found: list[dict[str, Any]] = []
    for block in c.items("block_configs")[: c.layers]:
        part = block.get(what) if isinstance(block, dict) else None
        found.append(part if isinstance(part, dict) else {"no_op": True})
    return found


def attention_groups(c: ConfigView) -> dict[int, tuple[int, ...]]:
    """KV heads -> the layers that have so many."""
    found: dict[int, list[int]] = {}
    for i, block in enumerate(blocks(c, "attention")):
        per = block.get("n_heads_in_group")
        if not block.get("no_op") and isinstance(per, int) and 0 < per <= c.heads:
            found.setdefault(c.heads // per, []).append(i)
    return {heads: tuple(layers) for heads, layers in found.items()}


def mlp_groups(c: ConfigView) -> dict[int, tuple[int, ...]]:
    """Width -> the layers whose MLP is so wide."""
    found: dict[int, list[int]] = {}
    for i, block in enumerate(blocks(c, "ffn")):
        width = block.get("intermediate_size")
        factor = block.get("ffn_mult")
        if isinstance(factor, (int, float)) and not isinstance(factor, bool) and 0 < factor < 1000:
            width = MULTIPLE * -(-int(2 * factor * c.hidden / 3) // MULTIPLE)
        if not block.get("no_op") and isinstance(width, int) and width > 0:
            found.setdefault(width, []).append(i)
    return {width: tuple(layers) for width, layers in found.items()}


def build(c: ConfigView) -> Iterator[ParamSpec]:
    attention, mlp, bias = attention_groups(c), mlp_groups(c), c.flag("attention_bias")
    yield embedding(c)
    for heads, layers in attention.items():
        yield norm(f"{LAYER}.input_layernorm", c.hidden, layers)
        yield from gqa(c, layers, kv_heads=heads, qkv_bias=bias, out_bias=bias)
    for width, layers in mlp.items():
        yield norm(f"{LAYER}.post_attention_layernorm", c.hidden, layers)
        yield from gated_mlp(c, layers, width=width, bias=c.flag("mlp_bias"))
    yield norm("model.norm", c.hidden, stage="last")
    yield head(c)


def memory(c: ConfigView) -> tuple[AttentionSpec, ...]:
    attention = attention_groups(c)
    idle = rest(c, [i for layers in attention.values() for i in layers])
    groups = [kv(c, layers, kv_heads=heads) for heads, layers in attention.items()]
    return (*groups, AttentionSpec("none", idle)) if idle else tuple(groups)


ARCHITECTURES = (Architecture("nemotron-nas", build, memory),)
