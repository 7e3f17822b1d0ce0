"""Mixtral and Phi's mixture, which store their experts as w1 (gate), w3 (up) and w2 (down)."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.blocks import LAYER, biased_head, param
from mlload.plan.architectures.decoder import decoder
from mlload.plan.architectures.memory import by_layer_types
from mlload.plan.architectures.moe_blocks import experts, router
from mlload.plan.params import ParamSpec, Part

MOE = f"{LAYER}.block_sparse_moe"


def moe(c: ConfigView) -> Iterator[ParamSpec]:
    layers = range(c.layers)
    yield router(c, layers, f"{MOE}.gate")
    yield from experts(c, layers, root=f"{MOE}.experts", names=("w1", "w3", "w2"), width=c.intermediate)


_biased = decoder(
    qkv_bias="attention_bias", out_bias="attention_bias", norm_bias=True, mlp=moe, head_bias="lm_head_bias"
)


def phimoe(c: ConfigView) -> Iterator[ParamSpec]:
    """The engine's class always makes the biases of attention and head; a checkpoint may lack them."""
    specs = [*_biased(c)]
    if not c.flag("lm_head_bias"):
        specs[-1:] = biased_head(c, engine_only=True)
    yield from specs
    if not c.flag("attention_bias"):
        yield from engine_biases(c)


def engine_biases(c: ConfigView) -> Iterator[ParamSpec]:
    """Biases of qkv_proj and o_proj that only the engine has."""
    layers, attention, d = range(c.layers), f"{LAYER}.self_attn", c.head_dim
    parts = (Part("q", c.heads * d, d), Part("k", c.kv_heads * d, d, "kv"), Part("v", c.kv_heads * d, d, "kv"))
    yield param(
        f"{attention}.qkv_proj.bias",
        (sum(part.length for part in parts),),
        layers,
        axes=("N",),
        style="column",
        parts=parts,
        component="attention",
        engine_only=True,
    )
    yield param(f"{attention}.o_proj.bias", (c.hidden,), layers, axes=("N",), component="attention", engine_only=True)


ARCHITECTURES = (
    Architecture("mixtral", decoder(mlp=moe), by_layer_types),
    Architecture("phimoe", phimoe, by_layer_types),
)
