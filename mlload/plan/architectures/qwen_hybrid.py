"""Qwen3-Next and Qwen3.5: linear attention in most layers, gated full attention in some."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.attention import AttentionSpec
from mlload.plan.architectures.blocks import (
    LAYER,
    column,
    embedding,
    gated_mlp,
    head,
    linear,
    norm,
    row,
)
from mlload.plan.architectures.composite import AS_IS, IN_MODEL, moved, on_every_stage, tower
from mlload.plan.architectures.draft import as_draft
from mlload.plan.architectures.gated_delta import gated_delta, state
from mlload.plan.architectures.memory import kv
from mlload.plan.architectures.moe_blocks import experts, router, stacked_experts
from mlload.plan.architectures.qwen import sparse_layers
from mlload.plan.architectures.qwen_vl import VISUAL_IN_MODEL, visual3
from mlload.plan.params import Cut, ParamSpec

Build = Callable[[ConfigView], Iterator[ParamSpec]]


def by_kind(c: ConfigView) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(layers with linear attention, with full attention)."""
    kinds, every = c.items("layer_types"), c.size("full_attention_interval", 4) or 4
    if not kinds:
        kinds = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(c.layers)]
    pairs = [*enumerate(kinds[: c.layers])]
    return (
        tuple(i for i, kind in pairs if kind == "linear_attention"),
        tuple(i for i, kind in pairs if kind == "full_attention"),
    )


def gated_attention(c: ConfigView, layers: Sequence[int]) -> Iterator[ParamSpec]:
    """q_proj yields a query and a gate per head, next to each other."""
    root, d, bias = f"{LAYER}.self_attn", c.head_dim, c.flag("attention_bias")
    per_head = 2 * d if c.flag("attn_output_gate", True) else d
    cuts: tuple[tuple[str, int, int, Cut], ...] = (
        ("q", c.heads, per_head, "split"),
        ("k", c.kv_heads, d, "kv"),
        ("v", c.kv_heads, d, "kv"),
    )
    for role, count, width, cut in cuts:
        yield column(
            f"{root}.{role}_proj",
            count * width,
            c.hidden,
            layers,
            role=role,
            unit=width,
            cut=cut,
            bias=bias,
            engine=f"{root}.qkv_proj",
            kind="QKVParallelLinear",
            component="attention",
            wiring=f"{LAYER}.input_layernorm",
        )
    yield norm(f"{root}.q_norm", d, layers)
    yield norm(f"{root}.k_norm", d, layers)
    yield row(
        f"{root}.o_proj",
        c.hidden,
        c.heads * d,
        layers,
        unit=d,
        bias=bias,
        component="attention",
        wiring=f"{root}.v_proj",
    )


def feed_forward(c: ConfigView, dense: Sequence[int], sparse: Sequence[int], *, stacked: bool) -> Iterator[ParamSpec]:
    if dense:
        yield from gated_mlp(c, dense)
    if not sparse:
        return
    yield router(c, sparse)
    yield from stacked_experts(c, sparse) if stacked else experts(c, sparse)
    shared = c.size("shared_expert_intermediate_size")
    common: dict[str, Any] = {"component": "shared_expert"}
    if shared:
        yield from gated_mlp(c, sparse, root=f"{LAYER}.mlp.shared_expert", width=shared, **common)
    yield linear(f"{LAYER}.mlp.shared_expert_gate", 1, c.hidden, sparse, quantized=False, **common)


def draft(c: ConfigView, *, sparse: bool, stacked: bool) -> Iterator[ParamSpec]:
    """Multi-token prediction under "mtp.": full-attention layers that read the model's embedding and its output."""
    layers = range(c.size("num_nextn_predict_layers"))
    if not layers:
        return
    found = [
        linear("mtp.fc", c.hidden, 2 * c.hidden, quantized=False),
        norm("mtp.pre_fc_norm_embedding", c.hidden),
        norm("mtp.pre_fc_norm_hidden", c.hidden),
        norm(f"{LAYER}.input_layernorm", c.hidden, layers),
        *gated_attention(c, layers),
        norm(f"{LAYER}.post_attention_layernorm", c.hidden, layers),
        *feed_forward(c, () if sparse else layers, layers if sparse else (), stacked=stacked),
        norm("mtp.norm", c.hidden),
    ]
    mtp = (("model.layers.", "mtp.layers."),)
    yield from as_draft(moved(found, mtp, mtp))


def language(*, interleaved: bool, stacked: bool = False) -> Build:
    """Modules of the language model, under "model."."""

    def build(c: ConfigView) -> Iterator[ParamSpec]:
        recurrent, full = by_kind(c)
        dense, sparse = sparse_layers(c) if c.experts else (range(c.layers), ())
        yield from on_every_stage([embedding(c)], "embedding")
        yield norm(f"{LAYER}.input_layernorm", c.hidden, range(c.layers))
        if recurrent:
            yield from gated_delta(c, recurrent, interleaved=interleaved)
        if full:
            yield from gated_attention(c, full)
        yield norm(f"{LAYER}.post_attention_layernorm", c.hidden, range(c.layers))
        yield from feed_forward(c, dense, sparse, stacked=stacked)
        yield norm("model.norm", c.hidden, stage="last")
        yield head(c)

    return build


def qwen3_next(c: ConfigView) -> Iterator[ParamSpec]:
    yield from language(interleaved=True)(c)
    yield from draft(c, sparse=c.experts > 0, stacked=False)


def qwen3_5(vision_type: str, *, stacked: bool = False) -> Build:
    text = language(interleaved=False, stacked=stacked)

    def build(c: ConfigView) -> Iterator[ParamSpec]:
        yield from tower(moved(visual3(c, vision_type), VISUAL_IN_MODEL, AS_IS))
        yield from moved(text(c), IN_MODEL)
        yield from draft(c, sparse=c.experts > 0, stacked=stacked)

    return build


def qwen3_5_text(c: ConfigView) -> Iterator[ParamSpec]:
    yield from language(interleaved=False)(c)
    yield from draft(c, sparse=c.experts > 0, stacked=False)


def memory(c: ConfigView) -> tuple[AttentionSpec, ...]:
    recurrent, full = by_kind(c)
    return tuple(spec for spec in (kv(c, full), state(c, recurrent)) if spec.layers)


ARCHITECTURES = (
    Architecture("qwen3_next", qwen3_next, memory),
    Architecture("qwen3_5", qwen3_5("qwen3_5_vision"), memory),
    Architecture(
        "qwen3_5_moe",
        qwen3_5("qwen3_5_moe_vision"),
        memory,
        variants=(qwen3_5("qwen3_5_moe_vision", stacked=True),),
    ),
    Architecture("qwen3_5_text", qwen3_5_text, memory, alternates=(("model.language_model.", "model."),)),
    Architecture("qwen3_5_moe_text", qwen3_5_text, memory, alternates=(("model.language_model.", "model."),)),
)
