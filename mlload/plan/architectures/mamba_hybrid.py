"""Attention and Mamba in one model: Bamba, Falcon-H1, Granite 4 (granitemoehybrid), Jamba."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.attention import AttentionSpec
from mlload.plan.architectures.blocks import LAYER, embedding, fused_gated_mlp, gated_mlp, gqa, head, norm
from mlload.plan.architectures.composite import on_every_stage
from mlload.plan.architectures.mamba_blocks import Mamba1, Mamba2, mamba1, mamba1_state, mamba2, mamba2_state
from mlload.plan.architectures.memory import kv, rest
from mlload.plan.architectures.moe_blocks import experts, router, stacked_experts
from mlload.plan.params import ParamSpec

MAMBA = LAYER + ".mamba"
FEED_FORWARD = LAYER + ".feed_forward"
INPUT = LAYER + ".input_layernorm"
BEFORE_MLP = LAYER + ".pre_ff_layernorm"


def sizes(c: ConfigView) -> Mamba2:
    """The mixer of Bamba, Falcon-H1 and Granite, whose fields share their names."""
    width = c.size("mamba_d_ssm") or c.size("mamba_expand", 2) * c.hidden
    heads = c.size("mamba_n_heads")
    return Mamba2(
        hidden=c.hidden,
        heads=heads,
        head_dim=c.size("mamba_d_head") or (width // heads if heads else 0),
        groups=c.size("mamba_n_groups", 1),
        state=c.size("mamba_d_state"),
        kernel=c.size("mamba_d_conv"),
        width=width,
        bias=c.flag("mamba_proj_bias"),
        out_bias=c.flag("mamba_proj_bias"),
        conv_bias=c.flag("mamba_conv_bias", True),
        norm=c.flag("mamba_rms_norm", True),
    )


# Bamba: a few layers have attention instead of a mixer.


def bamba_attention(c: ConfigView) -> tuple[int, ...]:
    kinds = c.items("layer_types")
    if kinds:
        return tuple(i for i, kind in enumerate(kinds) if kind in ("attention", "full_attention"))
    return tuple(i for i in c.items("attn_layer_indices") if isinstance(i, int))


def bamba(c: ConfigView) -> Iterator[ParamSpec]:
    attention = bamba_attention(c)
    layers, recurrent, bias = range(c.layers), rest(c, attention), c.flag("attention_bias")
    yield embedding(c)
    yield norm(INPUT, c.hidden, layers)
    if recurrent:
        yield from mamba2(sizes(c), recurrent, root=MAMBA, wiring=INPUT)
    if attention:
        yield from gqa(c, attention, qkv_bias=bias, out_bias=bias)
    yield norm(BEFORE_MLP, c.hidden, layers)
    yield from gated_mlp(c, layers, root=FEED_FORWARD, bias=c.flag("mlp_bias"), wiring=BEFORE_MLP)
    yield norm("model.final_layernorm", c.hidden, stage="last")
    yield head(c)


def bamba_memory(c: ConfigView) -> tuple[AttentionSpec, ...]:
    attention = bamba_attention(c)
    groups = (kv(c, attention), mamba2_state(sizes(c), rest(c, attention)))
    return tuple(group for group in groups if group.layers)


# Falcon-H1: attention and a mixer side by side in every layer.


def falcon_h1(c: ConfigView) -> Iterator[ParamSpec]:
    layers, bias = range(c.layers), c.flag("attention_bias")
    mixer = replace(sizes(c), norm=c.flag("mamba_rms_norm"), out_bias=c.flag("projectors_bias"))
    yield embedding(c)
    yield norm(INPUT, c.hidden, layers)
    for spec in mamba2(mixer, layers, root=MAMBA, wiring=INPUT):
        # vLLM wraps the mixer in a module of its own.
        yield replace(spec, engine=spec.engine.replace(MAMBA, f"{MAMBA}.mamba"))
    yield from gqa(c, layers, qkv_bias=bias, out_bias=bias)
    yield norm(BEFORE_MLP, c.hidden, layers)
    yield from gated_mlp(c, layers, root=FEED_FORWARD, bias=c.flag("mlp_bias"), wiring=BEFORE_MLP)
    yield norm("model.final_layernorm", c.hidden, stage="last")
    yield head(c)


def falcon_h1_memory(c: ConfigView) -> tuple[AttentionSpec, ...]:
    return (kv(c, range(c.layers)), mamba2_state(sizes(c), range(c.layers)))


# Granite 4: experts beside a shared MLP, gate and up in one tensor.


def granite_attention(c: ConfigView) -> tuple[int, ...]:
    kinds = c.items("layer_types") or c.items("layers_block_type")
    return tuple(i for i, kind in enumerate(kinds) if kind in ("attention", "full_attention"))


def granite(c: ConfigView) -> Iterator[ParamSpec]:
    attention = granite_attention(c)
    layers, recurrent, bias = range(c.layers), rest(c, attention), c.flag("attention_bias")
    before, names = f"{LAYER}.post_attention_layernorm", ("input_linear", "output_linear")
    found = [embedding(c), norm(INPUT, c.hidden, layers)]
    if recurrent:
        found += mamba2(sizes(c), recurrent, root=MAMBA, wiring=INPUT)
    if attention:
        found += gqa(c, attention, qkv_bias=bias, out_bias=bias)
    found.append(norm(before, c.hidden, layers))
    if c.experts:
        root = f"{LAYER}.block_sparse_moe"
        found.append(router(c, layers, f"{root}.router.layer", engine=f"{root}.gate"))
        found += stacked_experts(
            c,
            layers,
            root=root,
            names=names,
            width=c.intermediate,
            weight="weight",
            engine=f"{root}.experts.routed_experts",
            wiring=before,
        )
    shared = c.size("shared_intermediate_size")
    if shared:
        root = f"{LAYER}.shared_mlp"
        found += fused_gated_mlp(c, layers, root=root, width=shared, names=names, wiring=before)
    found += [norm("model.norm", c.hidden), head(c)]
    # vLLM builds the tables and the last norm on every stage (models/granitemoehybrid.py:342, :367, :666).
    yield from on_every_stage(found, "embedding", "norm", "head")


def granite_memory(c: ConfigView) -> tuple[AttentionSpec, ...]:
    attention = granite_attention(c)
    groups = (kv(c, attention), mamba2_state(sizes(c), rest(c, attention)))
    return tuple(group for group in groups if group.layers)


# Jamba: Mamba 1, attention every `attn_layer_period` layers, experts every `expert_layer_period`.


def every(c: ConfigView, what: str) -> tuple[int, ...]:
    period, offset = c.size(f"{what}_layer_period", 1) or 1, c.size(f"{what}_layer_offset")
    return tuple(i for i in range(c.layers) if i % period == offset % period)


def jamba_mixer(c: ConfigView) -> Mamba1:
    return Mamba1(
        hidden=c.hidden,
        width=c.size("mamba_expand", 2) * c.hidden,
        state=c.size("mamba_d_state"),
        kernel=c.size("mamba_d_conv"),
        rank=c.size("mamba_dt_rank") or -(-c.hidden // 16),
        bias=c.flag("mamba_proj_bias"),
        conv_bias=c.flag("mamba_conv_bias", True),
        norms=True,
    )


def jamba(c: ConfigView) -> Iterator[ParamSpec]:
    attention = every(c, "attn")
    sparse = every(c, "expert") if c.experts > 1 else ()
    dense, recurrent = rest(c, sparse), rest(c, attention)
    found = [embedding(c), norm(INPUT, c.hidden, range(c.layers))]
    if recurrent:
        found += mamba1(jamba_mixer(c), recurrent, root=MAMBA, wiring=INPUT)
    if attention:
        found += gqa(c, attention)
    found.append(norm(BEFORE_MLP, c.hidden, range(c.layers)))
    if dense:
        found += gated_mlp(c, dense, root=FEED_FORWARD, wiring=BEFORE_MLP)
    if sparse:
        found.append(router(c, sparse, f"{FEED_FORWARD}.router"))
        found += experts(c, sparse, root=f"{FEED_FORWARD}.experts", width=c.intermediate, wiring=BEFORE_MLP)
    found += [norm("model.final_layernorm", c.hidden), head(c)]
    # vLLM builds the tables and the last norm on every stage (models/jamba.py:313, :340, :424).
    yield from on_every_stage(found, "embedding", "norm", "head")


def jamba_memory(c: ConfigView) -> tuple[AttentionSpec, ...]:
    attention = every(c, "attn")
    groups = (kv(c, attention), mamba1_state(jamba_mixer(c), rest(c, attention)))
    return tuple(group for group in groups if group.layers)


ARCHITECTURES = (
    Architecture("bamba", bamba, bamba_memory),
    Architecture("falcon_h1", falcon_h1, falcon_h1_memory),
    Architecture("granitemoehybrid", granite, granite_memory),
    Architecture("jamba", jamba, jamba_memory),
)
