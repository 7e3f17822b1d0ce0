"""Kimi K2.5: MoonViT sees, DeepSeek V3's layers think."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures import vision
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.blocks import linear, norm, param
from mlload.plan.architectures.composite import WHOLE, language, memory_of_language, moved, nested, tower
from mlload.plan.params import ParamSpec


def moonvit(v: ConfigView) -> Iterator[ParamSpec]:
    """Published configs put "vt_" before the fields and call the positions "init_"."""

    def size(name: str) -> int:
        return v.size(f"vt_{name}") or v.size(f"init_{name}") or v.size(name)

    width, inner, heads = size("hidden_size"), size("intermediate_size"), size("num_attention_heads")
    layers, patch = range(size("num_hidden_layers")), vision.side(v, "patch_size", 14)
    root, embed = "vision_tower.encoder.blocks.{layer}", "vision_tower.patch_embed"
    yield vision.patch_conv(f"{embed}.proj", width, (3, patch, patch), bias=True)
    yield param(f"{embed}.pos_emb.weight", (size("pos_emb_height"), size("pos_emb_width"), width))
    yield norm(f"{root}.norm0", width, layers, bias=True)
    yield from vision.fused_attention(root, layers, width, heads, names=("wqkv", "wo"))
    yield norm(f"{root}.norm1", width, layers, bias=True)
    yield from vision.mlp(f"{root}.mlp", layers, width, inner, names=("fc0", "fc1"))
    yield norm("vision_tower.encoder.final_layernorm", width, bias=True)


def projector(c: ConfigView, v: ConfigView) -> Iterator[ParamSpec]:
    """Joins the patches of a merge kernel."""
    width = v.size("mm_hidden_size") or v.size("vt_hidden_size") or v.hidden
    kernel = [n for n in v.items("merge_kernel_size") if isinstance(n, int)] or [2, 2]
    merged = width * kernel[0] * kernel[-1]
    yield norm("mm_projector.pre_norm", width, bias=True)
    for name, held, n in (("proj.0", "linear_1", merged), ("proj.2", "linear_2", c.hidden)):
        engine = f"mm_projector.{held}"
        yield linear(f"mm_projector.{name}", n, merged, bias=True, engine=engine, component="projector")


def kimi_k25(c: ConfigView) -> Iterator[ParamSpec]:
    v = nested(c.raw.get("vision_config"), "kimi_k25_vision")
    # vLLM asks no quantization config for a method here (models/kimi_k25.py, _maybe_ignore_quant_config).
    for spec in tower((*moonvit(v), *projector(c, v))):
        yield replace(spec, quantized=False)
    yield from moved(language(c)[0](c), WHOLE)


ARCHITECTURES = (Architecture("kimi_k25", kimi_k25, memory_of_language, nested=True),)
