"""MiniCPM: Llama with scales in its arithmetic; MiniCPM3: low-rank attention whose cache is nevertheless whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.attention import AttentionSpec
from mlload.plan.architectures.blocks import LAYER, column, embedding, gated_mlp, head, linear, norm, row
from mlload.plan.architectures.decoder import decoder
from mlload.plan.architectures.memory import everywhere
from mlload.plan.architectures.moe_blocks import experts, router
from mlload.plan.params import ParamSpec

dense = decoder(qkv_bias="attention_bias", out_bias="attention_bias")


def moe(c: ConfigView) -> Iterator[ParamSpec]:
    """vLLM's class keeps these experts as bare parameters, which no quantization method sees."""
    layers = range(c.layers)
    yield router(c, layers)
    for spec in experts(c, layers, names=("w1", "w3", "w2"), width=c.intermediate, kind=""):
        yield replace(spec, quantized=False, engine=f"{LAYER}.mlp.{'w2s' if spec.style == 'row' else 'ws'}")


sparse = decoder(qkv_bias="attention_bias", out_bias="attention_bias", mlp=moe)


def minicpm(c: ConfigView) -> Iterator[ParamSpec]:
    return sparse(c) if c.experts else dense(c)


def qk_dims(c: ConfigView) -> tuple[int, int]:
    """Per head: (without positions, with them). Absent from configs of the first release, whose sizes follow."""
    rope = c.size("qk_rope_head_dim")
    return c.size("qk_nope_head_dim") or max(c.head_dim - rope, 0), rope


def minicpm3(c: ConfigView) -> Iterator[ParamSpec]:
    layers, attention = range(c.layers), f"{LAYER}.self_attn"
    (nope, rope), v = qk_dims(c), c.size("v_head_dim") or c.hidden // max(c.heads, 1)
    q_rank, kv_rank, bias = c.size("q_lora_rank"), c.size("kv_lora_rank"), c.flag("attention_bias")
    before = f"{LAYER}.input_layernorm"
    yield embedding(c)
    yield norm(before, c.hidden, layers)
    heads: dict[str, Any] = {"component": "attention", "role": "q", "unit": nope + rope}
    if q_rank:
        yield linear(f"{attention}.q_a_proj", q_rank, c.hidden, layers, bias=bias, component="attention", wiring=before)
        yield norm(f"{attention}.q_a_layernorm", q_rank, layers)
        yield column(
            f"{attention}.q_b_proj",
            c.heads * (nope + rope),
            q_rank,
            layers,
            wiring=f"{attention}.q_a_layernorm",
            **heads,
        )
    else:
        yield column(f"{attention}.q_proj", c.heads * (nope + rope), c.hidden, layers, wiring=before, **heads)
    yield linear(
        f"{attention}.kv_a_proj_with_mqa",
        kv_rank + rope,
        c.hidden,
        layers,
        bias=bias,
        component="attention",
        wiring=before,
    )
    yield norm(f"{attention}.kv_a_layernorm", kv_rank, layers)
    yield column(
        f"{attention}.kv_b_proj",
        c.heads * (nope + v),
        kv_rank,
        layers,
        role="kv",
        unit=nope + v,
        component="attention",
        wiring=f"{attention}.kv_a_layernorm",
    )
    yield row(
        f"{attention}.o_proj",
        c.hidden,
        c.heads * v,
        layers,
        unit=v,
        bias=bias,
        component="attention",
        wiring=f"{attention}.kv_b_proj",
    )
    yield norm(f"{LAYER}.post_attention_layernorm", c.hidden, layers)
    yield from gated_mlp(c, layers, bias=c.flag("mlp_bias"))
    yield norm("model.norm", c.hidden, stage="last")
    yield head(c)


def decompressed(c: ConfigView) -> tuple[AttentionSpec, ...]:
    """vLLM caches the expanded heads, values padded to the width of keys."""
    width = sum(qk_dims(c))
    spec = AttentionSpec("full", range(c.layers), heads=c.heads, kv_heads=c.heads, head_dim=width, v_head_dim=width)
    return (spec,)


ARCHITECTURES = (
    Architecture("minicpm", minicpm, everywhere),
    Architecture("minicpm3", minicpm3, decompressed),
)
