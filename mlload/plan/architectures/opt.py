"""OPT."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.blocks import embedding, gqa, head, linear, norm, plain_mlp, table
from mlload.plan.architectures.memory import everywhere
from mlload.plan.params import ParamSpec

DECODER = "model.decoder"
LAYER = DECODER + ".layers.{layer}"
POSITION_OFFSET = 2  # rows of the position table that come before position 0


def opt(c: ConfigView) -> Iterator[ParamSpec]:
    layers, bias = range(c.layers), c.flag("enable_bias", True)
    affine = c.flag("layer_norm_elementwise_affine", True)
    width = c.size("word_embed_proj_dim") or c.hidden
    yield embedding(c, f"{DECODER}.embed_tokens", width=width)
    rows = c.size("max_position_embeddings") + POSITION_OFFSET
    yield table(f"{DECODER}.embed_positions", rows, c.hidden, cut=False)
    plain: dict[str, Any] = {"component": "embedding"}
    if width != c.hidden:
        yield linear(f"{DECODER}.project_in", c.hidden, width, stage="all", **plain)
    if affine:
        yield norm(f"{LAYER}.self_attn_layer_norm", c.hidden, layers, bias=True)
    yield from gqa(
        c,
        layers,
        root=f"{LAYER}.self_attn",
        out="out_proj",
        kv_heads=c.heads,
        qkv_bias=bias,
        out_bias=bias,
        wiring=f"{LAYER}.self_attn_layer_norm" if affine else None,
    )
    if affine:
        yield norm(f"{LAYER}.final_layer_norm", c.hidden, layers, bias=True)
    yield from plain_mlp(c, layers, root=LAYER, bias=bias, wiring=f"{LAYER}.final_layer_norm" if affine else None)
    if affine and c.flag("do_layer_norm_before", True) and not c.flag("_remove_final_layer_norm"):
        yield norm(f"{DECODER}.final_layer_norm", c.hidden, bias=True, stage="last")
    if width != c.hidden:
        yield linear(f"{DECODER}.project_out", width, c.hidden, stage="all", **plain)
    yield head(c, tied_to=f"{DECODER}.embed_tokens", width=width)


# The first OPTs were published without the "model." that the class puts before every name.
ARCHITECTURES = (Architecture("opt", opt, everywhere, alternates=(("decoder.", "model.decoder."),)),)
