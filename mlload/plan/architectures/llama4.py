"""Llama 4: experts in every or every other layer beside a shared one, chunked attention, and an encoder."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures import vision
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.attention import AttentionSpec
from mlload.plan.architectures.blocks import LAYER, column, embedding, gated_mlp, gqa, head, norm, param
from mlload.plan.architectures.composite import WHOLE, moved, nested, tower
from mlload.plan.architectures.memory import kv, rest
from mlload.plan.architectures.moe_blocks import experts, router, stacked_experts
from mlload.plan.architectures.vision_encoders import patches
from mlload.plan.params import ParamSpec

ROOT = LAYER + ".feed_forward"
BEFORE = LAYER + ".post_attention_layernorm"


def sparse_layers(c: ConfigView) -> tuple[int, ...]:
    named = c.items("moe_layers")
    if named:
        return tuple(sorted({i for i in named if isinstance(i, int) and 0 <= i < c.layers}))
    step = c.size("interleave_moe_layer_step", 1)
    return tuple(range(step - 1, c.layers, step)) if step else ()


def language(c: ConfigView, *, stacked: bool = True) -> Iterator[ParamSpec]:
    """Modules of the language model, under "model."."""
    layers, sparse, bias = range(c.layers), sparse_layers(c), c.flag("attention_bias")
    dense = rest(c, sparse)
    yield embedding(c)
    yield norm(f"{LAYER}.input_layernorm", c.hidden, layers)
    yield from gqa(c, layers, qkv_bias=bias, out_bias=bias)
    yield norm(BEFORE, c.hidden, layers)
    if dense:
        yield from gated_mlp(c, dense, root=ROOT, width=c.size("intermediate_size_mlp"), wiring=BEFORE)
    if sparse:
        yield router(c, sparse, f"{ROOT}.router")
        common: dict[str, Any] = {"root": f"{ROOT}.experts", "width": c.intermediate, "wiring": BEFORE}
        yield from (
            stacked_experts(c, sparse, axes=("E", "K", "N"), **common) if stacked else experts(c, sparse, **common)
        )
        shared: dict[str, Any] = {"component": "shared_expert", "wiring": BEFORE}
        yield from gated_mlp(c, sparse, root=f"{ROOT}.shared_expert", width=c.intermediate, **shared)
    yield norm("model.norm", c.hidden, stage="last")
    yield head(c)


def encoder(v: ConfigView) -> Iterator[ParamSpec]:
    root, width, layers = "vision_model.model.layers.{layer}", v.hidden, range(v.layers)
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    patch = vision.side(v, "patch_size")
    yield column("vision_model.patch_embedding.linear", width, v.size("num_channels", 3) * patch**2)
    yield param("vision_model.class_embedding", (width,))
    yield param("vision_model.positional_embedding_vlm", (patches(v) + 1, width))
    yield norm("vision_model.layernorm_pre", width, bias=True)
    yield norm(f"{root}.input_layernorm", width, layers, bias=True)
    yield from vision.attention(f"{root}.self_attn", layers, width, v.heads, names=names)
    yield norm(f"{root}.post_attention_layernorm", width, layers, bias=True)
    yield from vision.mlp(f"{root}.mlp", layers, width, v.intermediate)
    yield norm("vision_model.layernorm_post", width, bias=True)
    # What pixel shuffle yields, width / ratio^2, is as wide as the MLP.
    inner, out = v.size("projector_input_dim"), v.size("projector_output_dim")
    yield from vision.mlp(
        "vision_model.vision_adapter.mlp", None, v.intermediate, inner, out=out, bias=False, component="projector"
    )


def llama4(c: ConfigView, *, stacked: bool = True) -> Iterator[ParamSpec]:
    v = nested(c.raw.get("vision_config"), "llama4_vision_model")
    yield from tower(encoder(v))
    projector = column("multi_modal_projector.linear_1", c.hidden, v.size("vision_output_dim"), component="projector")
    yield from tower([projector])
    yield from moved(language(c, stacked=stacked), WHOLE)


def memory(c: ConfigView) -> tuple[AttentionSpec, ...]:
    """Layers with rotary positions look at their chunk, the others (every fourth by default) at all."""
    named, every = c.items("no_rope_layers"), c.size("no_rope_layer_interval", 4) or 4
    rotary = named or [int((i + 1) % every != 0) for i in range(c.layers)]
    chunk = c.size("attention_chunk_size")
    near = tuple(i for i in range(min(c.layers, len(rotary))) if chunk and rotary[i])
    far = rest(c, near)
    groups = (kv(c, near, "chunked", window=chunk), kv(c, far))
    return tuple(group for group in groups if group.layers)


# Tools that quantize take the experts apart.
ARCHITECTURES = (
    Architecture("llama4", llama4, memory, variants=(partial(llama4, stacked=False),)),
    Architecture("llama4_text", language, memory, variants=(partial(language, stacked=False),)),
)
