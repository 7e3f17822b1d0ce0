"""Gemma 4: two kinds of attention with sizes of their own, experts beside the MLP, embeddings per layer, towers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.attention import AttentionSpec
from mlload.plan.architectures.blocks import (
    LAYER,
    column,
    embedding,
    gated_mlp,
    gqa,
    head,
    linear,
    norm,
    param,
    row,
    table,
)
from mlload.plan.architectures.composite import IN_MODEL, moved, nested, on_every_stage, tower
from mlload.plan.architectures.gemma4_towers import audio, vision
from mlload.plan.architectures.memory import kv, rest
from mlload.plan.architectures.moe_blocks import experts, router, stacked_experts
from mlload.plan.params import ParamSpec

ATTENTION = LAYER + ".self_attn"
BEFORE_MLP = LAYER + ".pre_feedforward_layernorm"
TOWERS = (("model.", ""),)


class Group(NamedTuple):
    """Layers of one kind. shared: their keys and values are those of an earlier layer."""

    layers: tuple[int, ...]
    sliding: bool
    shared: bool


def kinds(c: ConfigView) -> list[bool]:
    """Whether each layer looks at a window only: five of six where the config does not say, the last one never."""
    named = c.items("layer_types")
    near = [kind == "sliding_attention" for kind in named] or [bool((i + 1) % 6) for i in range(c.layers)]
    return [*near[:-1], False] if near else near


def groups(c: ConfigView) -> list[Group]:
    near, first_shared = kinds(c), c.layers - min(c.size("num_kv_shared_layers"), c.layers)
    found = [
        Group(tuple(i for i in range(min(c.layers, len(near))) if (near[i], i >= first_shared) == case), *case)
        for case in ((True, False), (False, False), (True, True), (False, True))
    ]
    return [group for group in found if group.layers]


def sizes(c: ConfigView, *, sliding: bool) -> tuple[int, int]:
    """(head_dim, KV heads) of a kind of layer."""
    if sliding:
        return c.head_dim, c.kv_heads
    few = c.size("num_global_key_value_heads") if c.flag("attention_k_eq_v") else 0
    return c.size("global_head_dim", 512), few or c.kv_heads


def attention(c: ConfigView, group: Group) -> Iterator[ParamSpec]:
    d, kv_heads = sizes(c, sliding=group.sliding)
    bias, layers = c.flag("attention_bias"), group.layers
    if group.shared:
        common: dict[str, Any] = {"bias": bias, "component": "attention"}
        wiring = f"{LAYER}.input_layernorm"
        yield column(f"{ATTENTION}.q_proj", c.heads * d, c.hidden, layers, role="q", unit=d, wiring=wiring, **common)
        yield row(f"{ATTENTION}.o_proj", c.hidden, c.heads * d, layers, unit=d, wiring=None, **common)
    else:
        once = not group.sliding and c.flag("attention_k_eq_v")
        for spec in gqa(c, layers, qkv_bias=bias, out_bias=bias, kv_heads=kv_heads, head_dim=d):
            # Where k serves as v too the engine's fused layer has a place for each.
            if once and spec.module.endswith(".v_proj"):
                yield replace(spec, engine_only=True, alias_of=f"{ATTENTION}.k_proj")
            else:
                yield spec
        yield norm(f"{ATTENTION}.k_norm", d, layers)
    yield norm(f"{ATTENTION}.q_norm", d, layers)


def mixture(c: ConfigView, *, stacked: bool) -> Iterator[ParamSpec]:
    """A router with scales of its own, and experts whose output is added to the MLP's."""
    layers = range(c.layers)
    root, inner = f"{LAYER}.router", f"{LAYER}.pre_feedforward_layernorm_2"
    yield param(f"{root}.scale", (c.hidden,), layers, component="router")
    yield router(c, layers, f"{root}.proj")
    yield param(f"{root}.per_expert_scale", (c.experts,), layers, component="router")
    yield norm(inner, c.hidden, layers)
    common: dict[str, Any] = {"root": f"{LAYER}.experts", "wiring": inner}
    yield from stacked_experts(c, layers, **common) if stacked else experts(c, layers, **common)
    yield norm(f"{LAYER}.post_feedforward_layernorm_1", c.hidden, layers)
    yield norm(f"{LAYER}.post_feedforward_layernorm_2", c.hidden, layers)


def per_layer_inputs(c: ConfigView, width: int) -> Iterator[ParamSpec]:
    """A second embedding, of `width` values for each layer, which a gate lets in."""
    layers, total = range(c.layers), width * c.layers
    common: dict[str, Any] = {"component": "other"}
    yield table("model.embed_tokens_per_layer", c.size("vocab_size_per_layer_input") or c.vocab, total)
    yield column("model.per_layer_model_projection", total, c.hidden, stage="all", **common)
    yield replace(norm("model.per_layer_projection_norm", width), stage="all")
    yield linear(f"{LAYER}.per_layer_input_gate", width, c.hidden, layers, **common)
    yield linear(f"{LAYER}.per_layer_projection", c.hidden, width, layers, **common)
    yield norm(f"{LAYER}.post_per_layer_input_norm", c.hidden, layers)


def language(c: ConfigView, *, stacked: bool = True) -> Iterator[ParamSpec]:
    """Modules of the language model, under "model."."""
    found: list[ParamSpec] = [embedding(c)]
    layers, every = range(c.layers), groups(c)
    for name in (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ):
        found.append(norm(f"{LAYER}.{name}", c.hidden, layers))
    found.append(param(f"{LAYER}.layer_scalar", (1,), layers, component="other", buffer=True))
    for group in every:
        found += attention(c, group)
    wide = tuple(sorted(i for group in every if group.shared for i in group.layers))
    if c.flag("use_double_wide_mlp") and wide:
        usual = rest(c, wide)
        if usual:
            found += gated_mlp(c, usual, wiring=BEFORE_MLP)
        found += gated_mlp(c, wide, width=2 * c.intermediate, wiring=BEFORE_MLP)
    else:
        found += gated_mlp(c, layers, wiring=BEFORE_MLP)
    if c.flag("enable_moe_block") and c.experts:
        found += mixture(c, stacked=stacked)
    width = c.size("hidden_size_per_layer_input")
    if width:
        found += per_layer_inputs(c, width)
    found += [norm("model.norm", c.hidden), head(c)]
    # vLLM builds what lies outside the layers on every stage (models/gemma4.py:1007, :1087, :1447).
    yield from on_every_stage(found, "embedding", "norm", "head")


def gemma4(c: ConfigView, *, stacked: bool = True) -> Iterator[ParamSpec]:
    sight, hearing = c.raw.get("vision_config"), c.raw.get("audio_config")
    if isinstance(sight, dict):
        yield from tower(moved(vision(nested(sight, "gemma4_vision"), c.hidden), (), TOWERS))
    if isinstance(hearing, dict):
        yield from tower(moved(audio(nested(hearing, "gemma4_audio"), c.hidden), (), TOWERS), "audio")
    yield from moved(language(c, stacked=stacked), IN_MODEL)


def memory(c: ConfigView) -> tuple[AttentionSpec, ...]:
    """Per kind of layer; layers that share an earlier layer's keys and values own none."""
    found: list[AttentionSpec] = []
    for sliding in (True, False):
        mine = [group for group in groups(c) if group.sliding == sliding]
        if not mine:
            continue
        d, kv_heads = sizes(c, sliding=sliding)
        layers = tuple(sorted(i for group in mine for i in group.layers))
        shares = tuple(i for group in mine if group.shared for i in group.layers)
        window = c.size("sliding_window") or None if sliding else None
        kind = kv(c, layers, "sliding" if window else "full", window=window, kv_heads=kv_heads, head_dim=d)
        found.append(kind._replace(shares=shares))
    return tuple(found)


# Tools that quantize take the experts apart.
ARCHITECTURES = (
    Architecture("gemma4", gemma4, memory, variants=(partial(gemma4, stacked=False),)),
    Architecture(
        "gemma4_text",
        language,
        memory,
        alternates=(("model.language_model.", "model."),),
        variants=(partial(language, stacked=False),),
    ),
)
