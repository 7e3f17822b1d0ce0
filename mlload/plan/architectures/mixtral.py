"""Mixtral and Phi's mixture, which store their experts as w1 (gate), w3 (up) and w2 (down)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.blocks import LAYER, param
from mlload.plan.architectures.decoder import decoder
from mlload.plan.architectures.memory import by_layer_types
from mlload.plan.architectures.moe_blocks import experts, router
from mlload.plan.params import ParamSpec, Part

MOE = f"{LAYER}.block_sparse_moe"


def moe(c: ConfigView) -> Iterator[ParamSpec]:
    layers = range(c.layers)
    yield router(c, layers, f"{MOE}.gate")
    yield from experts(c, layers, root=f"{MOE}.experts", names=("w1", "w3", "w2"), width=c.intermediate)


_phimoe = decoder(
    qkv_bias="attention_bias", out_bias="attention_bias", norm_bias=True, mlp=moe, head_bias="lm_head_bias"
)


def phimoe(c: ConfigView) -> Iterator[ParamSpec]:
    """The engine's class always makes the biases of attention and head; a checkpoint may lack them."""
    yield from _phimoe(c)
    layers, attention = range(c.layers), f"{LAYER}.self_attn"
    if not c.flag("attention_bias"):
        sizes = (("q", c.heads, "split"), ("k", c.kv_heads, "kv"), ("v", c.kv_heads, "kv"))
        parts = tuple(
            Part(role, heads * c.head_dim, c.head_dim, "split" if cut == "split" else "kv")
            for role, heads, cut in sizes
        )
        qkv = param(f"{attention}.qkv_proj.bias", (sum(p.length for p in parts),), layers, axes=("N",))
        yield replace(qkv, style="column", parts=parts, component="attention", engine_only=True)
        yield param(
            f"{attention}.o_proj.bias", (c.hidden,), layers, axes=("N",), component="attention", engine_only=True
        )
    if not c.flag("lm_head_bias"):
        bias = param("lm_head.bias", (c.vocab,), axes=("N",), component="head", stage="last", engine_only=True)
        yield replace(bias, style="vocab", parts=(Part("", c.vocab, 1, "vocab"),))


ARCHITECTURES = (
    Architecture("mixtral", decoder(mlp=moe), by_layer_types),
    Architecture("phimoe", phimoe, by_layer_types),
)
