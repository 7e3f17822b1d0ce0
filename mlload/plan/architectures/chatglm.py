"""ChatGLM2, ChatGLM3 and the first GLM-4, which share a config of their own."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.attention import AttentionSpec
from mlload.plan.architectures.blocks import fused_gated_mlp, fused_qkv, head, norm, param, table
from mlload.plan.architectures.memory import kv
from mlload.plan.params import ParamSpec

ENCODER = "transformer.encoder"
LAYER = ENCODER + ".layers.{layer}"


def heads(c: ConfigView) -> tuple[int, int]:
    """(KV heads, head_dim): `multi_query_group_num` counts where `multi_query_attention` is on."""
    groups = c.size("multi_query_group_num") if c.flag("multi_query_attention") else c.heads
    return groups or c.heads, c.size("kv_channels") or c.head_dim


def chatglm(c: ConfigView) -> Iterator[ParamSpec]:
    layers, (kv_heads, d) = range(c.layers), heads(c)
    bias, qkv_bias = c.flag("add_bias_linear"), c.flag("add_qkv_bias")
    norm_bias = not c.flag("rmsnorm", True)
    yield table("transformer.embedding.word_embeddings", c.vocab, c.hidden, engine="transformer.embedding")
    yield param("transformer.rotary_pos_emb.inv_freq", (d // 4,), engine="", optional=True, stage="first")
    yield norm(f"{LAYER}.input_layernorm", c.hidden, layers, bias=norm_bias)
    yield from fused_qkv(
        c,
        layers,
        root=f"{LAYER}.self_attention",
        name="query_key_value",
        out="dense",
        qkv_bias=bias or qkv_bias,
        out_bias=bias,
        kv_heads=kv_heads,
        head_dim=d,
        wiring=f"{LAYER}.input_layernorm",
    )
    yield norm(f"{LAYER}.post_attention_layernorm", c.hidden, layers, bias=norm_bias)
    yield from fused_gated_mlp(
        c,
        layers,
        root=f"{LAYER}.mlp",
        names=("dense_h_to_4h", "dense_4h_to_h"),
        bias=bias,
        wiring=f"{LAYER}.post_attention_layernorm",
    )
    if c.flag("post_layer_norm", True):
        yield norm(f"{ENCODER}.final_layernorm", c.hidden, stage="last", bias=norm_bias)
    yield head(c, "transformer.output_layer", alias_of=None)


def memory(c: ConfigView) -> tuple[AttentionSpec, ...]:
    kv_heads, d = heads(c)
    return (kv(c, range(c.layers), kv_heads=kv_heads, head_dim=d),)


ARCHITECTURES = (Architecture("chatglm", chatglm, memory),)
