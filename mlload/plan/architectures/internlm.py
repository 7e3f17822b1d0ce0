"""InternLM2, whose names are its own (InternLM3's are Llama's: see `llama`)."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.blocks import LAYER, embedding, fused_qkv, gated_mlp, head, norm
from mlload.plan.architectures.memory import everywhere
from mlload.plan.params import ParamSpec


def internlm2(c: ConfigView) -> Iterator[ParamSpec]:
    """wqkv holds, for each KV head in turn, its query heads, its key head and its value head."""
    layers, bias = range(c.layers), c.flag("bias")
    yield embedding(c, "model.tok_embeddings")
    yield norm(f"{LAYER}.attention_norm", c.hidden, layers)
    yield from fused_qkv(
        c,
        layers,
        root=f"{LAYER}.attention",
        name="wqkv",
        out="wo",
        qkv_bias=bias,
        out_bias=bias,
        groups=c.kv_heads,
        wiring=f"{LAYER}.attention_norm",
    )
    yield norm(f"{LAYER}.ffn_norm", c.hidden, layers)
    yield from gated_mlp(c, layers, root=f"{LAYER}.feed_forward", names=("w1", "w3", "w2"), wiring=f"{LAYER}.ffn_norm")
    yield norm("model.norm", c.hidden, stage="last")
    yield head(c, "output", tied_to="model.tok_embeddings")


ARCHITECTURES = (Architecture("internlm2", internlm2, everywhere),)
