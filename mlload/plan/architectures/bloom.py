"""BLOOM."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.blocks import embedding, fused_qkv, head, norm, plain_mlp
from mlload.plan.architectures.memory import everywhere
from mlload.plan.params import ParamSpec

H = "transformer.h.{layer}"
NAMES = ("dense_h_to_4h", "dense_4h_to_h")


def bloom(c: ConfigView) -> Iterator[ParamSpec]:
    """q, k and v of each head in turn, in one tensor; no positions; a norm after the table."""
    layers = range(c.layers)
    yield embedding(c, "transformer.word_embeddings")
    yield norm("transformer.word_embeddings_layernorm", c.hidden, bias=True, stage="first")
    yield norm(f"{H}.input_layernorm", c.hidden, layers, bias=True)
    yield from fused_qkv(
        c,
        layers,
        root=f"{H}.self_attention",
        name="query_key_value",
        out="dense",
        kv_heads=c.heads,
        groups=c.heads,
        qkv_bias=True,
        out_bias=True,
        wiring=f"{H}.input_layernorm",
    )
    yield norm(f"{H}.post_attention_layernorm", c.hidden, layers, bias=True)
    yield from plain_mlp(
        c, layers, root=f"{H}.mlp", width=4 * c.hidden, names=NAMES, wiring=f"{H}.post_attention_layernorm"
    )
    yield norm("transformer.ln_f", c.hidden, bias=True, stage="last")
    yield head(c, tied_to="transformer.word_embeddings")


# The first BLOOMs were published without the "transformer." that the class puts before every name.
ARCHITECTURES = (Architecture("bloom", bloom, everywhere, alternates=(("", "transformer."),)),)
