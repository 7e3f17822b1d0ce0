"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL (dense and with experts)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures import vision
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.blocks import gated_mlp, norm, table
from mlload.plan.architectures.composite import AS_IS, IN_MODEL, moved, nested, on_every_stage, tower
from mlload.plan.architectures.decoder import decoder
from mlload.plan.architectures.memory import everywhere
from mlload.plan.architectures.moe_blocks import experts, router, stacked_experts
from mlload.plan.architectures.qwen import memory, sparse_layers
from mlload.plan.params import ParamSpec

VISUAL_IN_MODEL = (("visual.", "model.visual."),)
# As transformers since v4.52 may save them: the layout of Qwen3-VL.
OLD_PREFIXES = (("model.language_model.", "model."), ("model.visual.", "visual."))


def merger(root: str, width: int, merged: int, out: int, names: tuple[str, str]) -> Iterator[ParamSpec]:
    """Joins merge_size^2 neighbouring patches and projects them to the language model's width."""
    yield from vision.mlp(root, None, merged, merged, out=out, names=names, component="projector")


def visual2(c: ConfigView) -> Iterator[ParamSpec]:
    """Qwen2-VL: a plain ViT; `hidden_size` is the width that it hands over, `embed_dim` its own."""
    v = nested(c.raw.get("vision_config"), "qwen2_vl_vision")
    width, blocks, merge = v.size("embed_dim"), range(v.size("depth")), v.size("spatial_merge_size", 2)
    root, patch = "visual.blocks.{layer}", vision.side(v, "patch_size")
    kernel = (v.size("in_channels", 3), vision.side(v, "temporal_patch_size", 2), patch, patch)
    yield vision.patch_conv("visual.patch_embed.proj", width, kernel)
    yield norm(f"{root}.norm1", width, blocks, bias=True)
    yield from vision.fused_attention(f"{root}.attn", blocks, width, v.size("num_heads"), names=("qkv", "proj"))
    yield norm(f"{root}.norm2", width, blocks, bias=True)
    yield from vision.mlp(f"{root}.mlp", blocks, width, int(width * v.size("mlp_ratio", 4)))
    yield norm("visual.merger.ln_q", width, bias=True)
    yield from merger("visual.merger", width, width * merge**2, v.size("hidden_size"), ("mlp.0", "mlp.2"))


def visual2_5(c: ConfigView) -> Iterator[ParamSpec]:
    """Qwen2.5-VL: RMSNorm and a gated MLP."""
    v = nested(c.raw.get("vision_config"), "qwen2_5_vl_vision")
    width, blocks, merge = v.hidden, range(v.size("depth")), v.size("spatial_merge_size", 2)
    root, patch = "visual.blocks.{layer}", vision.side(v, "patch_size")
    kernel = (v.size("in_channels", 3), vision.side(v, "temporal_patch_size", 2), patch, patch)
    yield vision.patch_conv("visual.patch_embed.proj", width, kernel)
    yield norm(f"{root}.norm1", width, blocks)
    yield from vision.fused_attention(f"{root}.attn", blocks, width, v.size("num_heads"), names=("qkv", "proj"))
    yield norm(f"{root}.norm2", width, blocks)
    yield from gated_mlp(v, blocks, root=f"{root}.mlp", bias=True, wiring=f"{root}.norm2")
    yield norm("visual.merger.ln_q", width)
    yield from merger("visual.merger", width, width * merge**2, v.size("out_hidden_size"), ("mlp.0", "mlp.2"))


def visual3(c: ConfigView, vision_type: str) -> Iterator[ParamSpec]:
    """Qwen3-VL and Qwen3.5: learned positions, and mergers that feed several depths ("deepstack")."""
    v = nested(c.raw.get("vision_config"), vision_type)
    width, blocks, merge = v.hidden, range(v.size("depth")), v.size("spatial_merge_size", 2)
    root, patch, out = "visual.blocks.{layer}", vision.side(v, "patch_size"), v.size("out_hidden_size")
    kernel = (v.size("in_channels", 3), vision.side(v, "temporal_patch_size", 2), patch, patch)
    names = ("linear_fc1", "linear_fc2")
    yield vision.patch_conv("visual.patch_embed.proj", width, kernel, bias=True)
    yield table("visual.pos_embed", v.size("num_position_embeddings"), width, cut=False)
    yield norm(f"{root}.norm1", width, blocks, bias=True)
    yield from vision.fused_attention(f"{root}.attn", blocks, width, v.size("num_heads"), names=("qkv", "proj"))
    yield norm(f"{root}.norm2", width, blocks, bias=True)
    yield from vision.mlp(f"{root}.mlp", blocks, width, v.intermediate, names=names)
    merged = width * merge**2
    yield norm("visual.merger.norm", width, bias=True)
    yield from merger("visual.merger", width, merged, out, names)
    deep, levels = "visual.deepstack_merger_list.{layer}", range(len(v.items("deepstack_visual_indexes")))
    if levels:
        yield norm(f"{deep}.norm", merged, levels, bias=True)
        yield from vision.mlp(deep, levels, merged, merged, out=out, names=names, component="projector")


QWEN2 = decoder(qkv_bias=True)
QWEN3 = decoder(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=True)


def qwen2_vl(c: ConfigView) -> Iterator[ParamSpec]:
    yield from tower(visual2(c))
    yield from moved(QWEN2(c), AS_IS)


def qwen2_5_vl(c: ConfigView) -> Iterator[ParamSpec]:
    yield from tower(visual2_5(c))
    yield from moved(QWEN2(c), AS_IS)


def qwen3_vl(c: ConfigView) -> Iterator[ParamSpec]:
    yield from tower(moved(visual3(c, "qwen3_vl_vision"), VISUAL_IN_MODEL, AS_IS))
    yield from moved(QWEN3(c), IN_MODEL)


def qwen3_vl_moe(axes: tuple[str, str, str] | None) -> Callable[[ConfigView], Iterator[ParamSpec]]:
    """axes: how the stacked experts lie. Published checkpoints hold them transposed, [E, K, N]; transformers saves
    models of its own making as [E, N, K]; None: one by one, as tools that quantize leave them."""

    def moe(c: ConfigView) -> Iterator[ParamSpec]:
        dense, sparse = sparse_layers(c)
        if dense:
            yield from gated_mlp(c, dense)
        if sparse:
            yield router(c, sparse)
            yield from stacked_experts(c, sparse, axes=axes) if axes else experts(c, sparse)

    language = decoder(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=True, mlp=moe)

    def build(c: ConfigView) -> Iterator[ParamSpec]:
        yield from tower(moved(visual3(c, "qwen3_vl_moe_vision"), VISUAL_IN_MODEL, AS_IS))
        yield from moved(on_every_stage(language(c), "embedding", "norm"), IN_MODEL)

    return build


ARCHITECTURES = (
    Architecture("qwen2_vl", qwen2_vl, memory, alternates=OLD_PREFIXES),
    Architecture("qwen2_5_vl", qwen2_5_vl, memory, alternates=OLD_PREFIXES),
    Architecture("qwen3_vl", qwen3_vl, everywhere),
    Architecture(
        "qwen3_vl_moe",
        qwen3_vl_moe(("E", "N", "K")),
        everywhere,
        variants=(qwen3_vl_moe(("E", "K", "N")), qwen3_vl_moe(None)),
    ),
)
