"""Encoders that several models see with: CLIP, SigLIP, Pixtral, InternViT. Named as inside the encoder.

An engine builds an encoder only up to the layer whose output is taken (`depth`); what checkpoints
hold beyond it counts on disk alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures import vision
from mlload.plan.architectures.blocks import gated_mlp, linear, norm, param, table
from mlload.plan.params import ParamSpec

# (the encoder's config, layers that the engine builds) -> modules
Encoder = Callable[[ConfigView, int], Iterator[ParamSpec]]


def up_to(specs: Iterable[ParamSpec], depth: int) -> Iterator[ParamSpec]:
    """Layers from `depth` on are the checkpoint's alone."""
    for spec in specs:
        if spec.layers is None or max(spec.layers, default=0) < depth:
            yield spec
            continue
        built = tuple(i for i in spec.layers if i < depth)
        if built:
            yield replace(spec, layers=built)
        yield unbuilt(replace(spec, layers=tuple(i for i in spec.layers if i >= depth)))


def unbuilt(spec: ParamSpec) -> ParamSpec:
    """A module that checkpoints hold and the engine leaves out."""
    return replace(spec, engine="")


def pre_norm(v: ConfigView, root: str) -> Iterator[ParamSpec]:
    """The layers of CLIP and SigLIP."""
    layers, width = range(v.layers), v.hidden
    yield norm(f"{root}.layer_norm1", width, layers, bias=True)
    yield from vision.attention(f"{root}.self_attn", layers, width, v.heads)
    yield norm(f"{root}.layer_norm2", width, layers, bias=True)
    yield from vision.mlp(f"{root}.mlp", layers, width, v.intermediate)


def patches(v: ConfigView) -> int:
    patch = vision.side(v, "patch_size")
    return (vision.side(v, "image_size") // patch) ** 2 if patch else 0


def clip(v: ConfigView, depth: int) -> Iterator[ParamSpec]:
    """A class token, and a norm before the layers."""
    width, patch = v.hidden, vision.side(v, "patch_size")
    yield param("embeddings.class_embedding", (width,))
    yield vision.patch_conv("embeddings.patch_embedding", width, (v.size("num_channels", 3), patch, patch))
    yield table("embeddings.position_embedding", patches(v) + 1, width, cut=False)
    yield norm("pre_layrnorm", width, bias=True)
    yield from up_to(pre_norm(v, "encoder.layers.{layer}"), depth)
    last = norm("post_layernorm", width, bias=True)
    yield last if depth == v.layers else unbuilt(last)


def siglip(v: ConfigView, depth: int) -> Iterator[ParamSpec]:
    """No class token; a pooling head, which language models have no use for."""
    width, patch = v.hidden, vision.side(v, "patch_size")
    channels = v.size("num_channels", 3)
    yield vision.patch_conv("embeddings.patch_embedding", width, (channels, patch, patch), bias=True)
    yield table("embeddings.position_embedding", patches(v), width, cut=False)
    yield from up_to(pre_norm(v, "encoder.layers.{layer}"), depth)
    last = norm("post_layernorm", width, bias=True)
    yield last if depth == v.layers else unbuilt(last)
    if v.flag("vision_use_head", True):
        for spec in pooling_head(v):
            yield unbuilt(spec)


def pooling_head(v: ConfigView) -> Iterator[ParamSpec]:
    width = v.hidden
    yield param("head.probe", (1, 1, width))
    yield param("head.attention.in_proj_weight", (3 * width, width))
    yield param("head.attention.in_proj_bias", (3 * width,))
    yield linear("head.attention.out_proj", width, width, bias=True)
    yield norm("head.layernorm", width, bias=True)
    yield from vision.mlp("head.mlp", None, width, v.intermediate)


def pixtral(v: ConfigView, depth: int) -> Iterator[ParamSpec]:
    """RMSNorm, rotary positions and a gated MLP, as in a decoder."""
    width, layers, patch = v.hidden, range(v.layers), vision.side(v, "patch_size")
    root = "transformer.layers.{layer}"
    yield vision.patch_conv("patch_conv", width, (v.size("num_channels", 3), patch, patch))
    yield norm("ln_pre", width)
    blocks = [
        norm(f"{root}.attention_norm", width, layers),
        *vision.attention(
            f"{root}.attention",
            layers,
            width,
            v.heads,
            names=("q_proj", "k_proj", "v_proj", "o_proj"),
            bias=False,
            out_bias=False,
        ),
        norm(f"{root}.ffn_norm", width, layers),
        *gated_mlp(v, layers, root=f"{root}.feed_forward", wiring=f"{root}.ffn_norm"),
    ]
    yield from up_to(blocks, depth)


def internvit(v: ConfigView, depth: int) -> Iterator[ParamSpec]:
    """InternViT as transformers has it. Attention is whole on every rank, the MLP is cut."""
    width, layers, patch = v.hidden, range(v.layers), vision.side(v, "patch_size")
    root, kind = "encoder.layer.{layer}", "RMSNorm" if v.get("norm_type") == "rms_norm" else "LayerNorm"
    biased = kind == "LayerNorm"
    yield param("embeddings.cls_token", (1, 1, width))
    if v.flag("use_mask_token"):
        yield param("embeddings.mask_token", (1, 1, width))
    if v.flag("use_absolute_position_embeddings", True):
        yield param("embeddings.position_embeddings", (1, patches(v) + 1, width))
    channels = v.size("num_channels", 3)
    yield vision.patch_conv("embeddings.patch_embeddings.projection", width, (channels, patch, patch), bias=True)
    blocks = [norm(f"{root}.layernorm_before", width, layers, bias=biased, kind=kind)]
    for name in ("q_proj", "k_proj", "v_proj"):
        bias = v.flag("attention_bias")
        blocks.append(linear(f"{root}.attention.{name}", width, width, layers, bias=bias, quantized=False))
    if v.flag("use_qk_norm"):
        blocks += [norm(f"{root}.attention.{name}", width, layers) for name in ("q_norm", "k_norm")]
    out = linear(f"{root}.attention.projection_layer", width, width, layers, bias=True, quantized=False)
    blocks += [
        out,
        param(f"{root}.lambda_1", (width,), layers),
        norm(f"{root}.layernorm_after", width, layers, bias=biased, kind=kind),
        *vision.mlp(f"{root}.mlp", layers, width, v.intermediate),
        param(f"{root}.lambda_2", (width,), layers),
    ]
    yield from up_to(blocks, depth)
    if not v.flag("use_mean_pooling", True):
        yield norm("layernorm", width, bias=True)


def intern_chat(v: ConfigView, depth: int) -> Iterator[ParamSpec]:
    """InternViT under its authors' names: q, k and v in one tensor, scales called ls1 and ls2."""
    width, layers, patch = v.hidden, range(v.layers), vision.side(v, "patch_size")
    root, kind = "encoder.layers.{layer}", "RMSNorm" if v.get("norm_type") == "rms_norm" else "LayerNorm"
    biased = kind == "LayerNorm"
    yield param("embeddings.class_embedding", (1, 1, width))
    yield vision.patch_conv("embeddings.patch_embedding", width, (v.size("num_channels", 3), patch, patch), bias=True)
    yield param("embeddings.position_embedding", (1, patches(v) + 1, width))
    heads, names = v.heads, ("qkv", "proj")
    blocks = [norm(f"{root}.norm1", width, layers, bias=biased, kind=kind)]
    for spec in vision.fused_attention(f"{root}.attn", layers, width, heads, names=names):
        blocks.append(spec if spec.style == "row" or v.flag("qkv_bias", True) else replace(spec, bias=None))
    if v.flag("qk_normalization"):
        blocks += [norm(f"{root}.attn.{name}", width, layers) for name in ("q_norm", "k_norm")]
    blocks += [
        param(f"{root}.ls1", (width,), layers),
        norm(f"{root}.norm2", width, layers, bias=biased, kind=kind),
        *vision.mlp(f"{root}.mlp", layers, width, v.intermediate),
        param(f"{root}.ls2", (width,), layers),
    ]
    yield from up_to(blocks, depth)


ENCODERS: dict[str, Encoder] = {
    "clip_vision_model": clip,
    "siglip_vision_model": siglip,
    "pixtral": pixtral,
    "internvl_vision": internvit,
}
