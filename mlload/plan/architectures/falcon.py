"""Falcon, with one, few or all key and value heads."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.blocks import embedding, fused_qkv, head, norm, plain_mlp
from mlload.plan.architectures.memory import everywhere
from mlload.plan.params import ParamSpec

H = "transformer.h.{layer}"


def norms(c: ConfigView) -> tuple[tuple[str, ...], str, str]:
    """(all norms of a layer, the one before attention, the one before the MLP)."""
    new = c.flag("new_decoder_architecture")
    count = c.size("num_ln_in_parallel_attn") or (2 if new else 1)
    if not new and not c.flag("parallel_attn", True):
        return ("input_layernorm", "post_attention_layernorm"), "input_layernorm", "post_attention_layernorm"
    if count == 2:
        return ("ln_attn", "ln_mlp"), "ln_attn", "ln_mlp"
    return ("input_layernorm",), "input_layernorm", "input_layernorm"


def falcon(c: ConfigView) -> Iterator[ParamSpec]:
    """For each KV head in turn its query heads, its key head and its value head, in one tensor."""
    layers, bias = range(c.layers), c.flag("bias")
    names, before_attention, before_mlp = norms(c)
    yield embedding(c, "transformer.word_embeddings")
    for name in names:
        yield norm(f"{H}.{name}", c.hidden, layers, bias=True)
    yield from fused_qkv(
        c,
        layers,
        root=f"{H}.self_attention",
        name="query_key_value",
        out="dense",
        groups=c.kv_heads,
        qkv_bias=bias,
        out_bias=bias,
        wiring=f"{H}.{before_attention}",
    )
    yield from plain_mlp(
        c,
        layers,
        root=f"{H}.mlp",
        width=c.intermediate or 4 * c.hidden,
        names=("dense_h_to_4h", "dense_4h_to_h"),
        bias=bias,
        wiring=f"{H}.{before_mlp}",
    )
    yield norm("transformer.ln_f", c.hidden, bias=True, stage="last")
    yield head(c, tied_to="transformer.word_embeddings")


ARCHITECTURES = (Architecture("falcon", falcon, everywhere),)
