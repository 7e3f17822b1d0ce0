"""Types that no installed library builds, layouts that published files have, draft layers: lists written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from mlload.checkpoint.config import ConfigView
from mlload.checkpoint.tensor import TensorRef
from mlload.plan.architectures import Architecture, find
from mlload.plan.architectures.layout import fitting
from tests.plan.architecture_cases import CASES

Shapes = dict[str, tuple[int, ...]]

SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 80,
    "intermediate_size": 40,
}


def table(config: dict[str, Any]) -> tuple[ConfigView, Architecture]:
    view = ConfigView(config)
    architecture = find(view)
    assert architecture is not None
    return view, architecture


def on_disk(config: dict[str, Any], *, draft: bool = False) -> Shapes:
    view, architecture = table(config)
    return shapes(architecture, view, draft=draft)


def shapes(architecture: Architecture, view: ConfigView, *, draft: bool = False) -> Shapes:
    found: Shapes = {}
    for spec in architecture.params(view):
        if spec.alias_of or spec.engine_only or spec.draft is not draft:
            continue
        for module in spec.modules():
            found[spec.tensor(module)] = spec.shape
            if spec.bias:
                found[spec.tensor(module, spec.bias)] = spec.bias_shape
    return found


def under(root: str, modules: Shapes, count: int = 1, start: int = 0) -> Shapes:
    """`modules` in `count` layers, whose number stands for # in `root`."""
    return {
        f"{root.replace('#', str(i))}.{name}": shape
        for i in range(start, start + count)
        for name, shape in modules.items()
    }


def linear(name: str, n: int, k: int) -> Shapes:
    return {f"{name}.weight": (n, k), f"{name}.bias": (n,)}


def layer_norm(name: str, size: int) -> Shapes:
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


def tensors(names: Shapes) -> dict[str, TensorRef]:
    return {name: TensorRef(name, "BF16", shape, 0, 0, 0) for name, shape in names.items()}


# Architecture search: the second layer has no attention, the third no MLP.


def test_nemotron_nas_layers_have_sizes_of_their_own() -> None:
    blocks = [
        {"attention": {"n_heads_in_group": 2, "no_op": False}, "ffn": {"ffn_mult": 5.25, "no_op": False}},
        {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": 2.0, "no_op": False}},
        {"attention": {"n_heads_in_group": 4, "no_op": False}, "ffn": {"ffn_mult": None, "no_op": True}},
    ]
    config = {
        **SIZES,
        "model_type": "nemotron-nas",
        "num_hidden_layers": 3,
        "hidden_size": 192,
        "block_configs": blocks,
    }
    # int(2 x 5.25 x 192 / 3) = 672 -> 768; int(2 x 2 x 192 / 3) = 256
    attention = {"self_attn.q_proj.weight": (192, 192), "self_attn.o_proj.weight": (192, 192)}
    assert on_disk(config) == {
        "model.embed_tokens.weight": (80, 192),
        **under("model.layers.#", {"input_layernorm.weight": (192,), **attention}),
        **under("model.layers.#", {"self_attn.k_proj.weight": (96, 192), "self_attn.v_proj.weight": (96, 192)}),
        **under("model.layers.#", {"input_layernorm.weight": (192,), **attention}, start=2),
        **under(
            "model.layers.#", {"self_attn.k_proj.weight": (48, 192), "self_attn.v_proj.weight": (48, 192)}, start=2
        ),
        **mlp(0, 768),
        **mlp(1, 256),
        "model.norm.weight": (192,),
        "lm_head.weight": (80, 192),
    }


def mlp(layer: int, width: int) -> Shapes:
    return under(
        "model.layers.#",
        {
            "post_attention_layernorm.weight": (192,),
            "mlp.gate_proj.weight": (width, 192),
            "mlp.up_proj.weight": (width, 192),
            "mlp.down_proj.weight": (192, width),
        },
        start=layer,
    )


def test_nemotron_nas_layers_without_attention_remember_nothing() -> None:
    blocks = [
        {"attention": {"n_heads_in_group": 2, "no_op": False}, "ffn": {"ffn_mult": 2.0, "no_op": False}},
        {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": 2.0, "no_op": False}},
    ]
    view, architecture = table({**SIZES, "model_type": "nemotron-nas", "block_configs": blocks})
    groups = [(group.kind, tuple(group.layers), group.kv_heads) for group in architecture.attention(view)]
    assert groups == [("full", (0,), 2), ("none", (1,), 0)]


# Towers.


def test_kimi_k25_as_published() -> None:
    text = {**CASES["deepseek_v3"][0].config, "model_type": "kimi_k2"}
    vision = {
        "vt_hidden_size": 24,
        "vt_intermediate_size": 36,
        "vt_num_attention_heads": 3,
        "vt_num_hidden_layers": 2,
        "mm_hidden_size": 24,
        "init_pos_emb_height": 5,
        "init_pos_emb_width": 6,
        "patch_size": 4,
        "merge_kernel_size": [2, 2],
    }
    outer = {"model_type": "kimi_k25", "tie_word_embeddings": False}
    found = on_disk({**outer, "text_config": text, "vision_config": vision})
    block = {
        **layer_norm("norm0", 24),
        **layer_norm("norm1", 24),
        **linear("wqkv", 72, 24),
        **linear("wo", 24, 24),
        **linear("mlp.fc0", 36, 24),
        **linear("mlp.fc1", 24, 36),
    }
    tower = {
        "vision_tower.patch_embed.proj.weight": (24, 3, 4, 4),
        "vision_tower.patch_embed.proj.bias": (24,),
        "vision_tower.patch_embed.pos_emb.weight": (5, 6, 24),
        **under("vision_tower.encoder.blocks.#", block, 2),
        **layer_norm("vision_tower.encoder.final_layernorm", 24),
        **layer_norm("mm_projector.pre_norm", 24),
        **linear("mm_projector.proj.0", 96, 96),
        **linear("mm_projector.proj.2", 48, 96),
    }
    inside = {f"language_model.{name}": shape for name, shape in on_disk(text).items()}
    assert found == {**tower, **inside}


def test_internvl_as_its_authors_publish_it() -> None:
    text = {**SIZES, "model_type": "qwen2", "num_key_value_heads": 2}
    vision = {
        "model_type": "intern_vit_6b",
        "hidden_size": 24,
        "intermediate_size": 36,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "image_size": 12,
        "patch_size": 4,
        "qkv_bias": False,
        "qk_normalization": True,
        "norm_type": "rms_norm",
    }
    config = {
        "model_type": "internvl_chat",
        "llm_config": text,
        "vision_config": vision,
        "downsample_ratio": 0.5,
        "select_layer": -1,
    }
    block = {
        "norm1.weight": (24,),
        "norm2.weight": (24,),
        "ls1": (24,),
        "ls2": (24,),
        "attn.qkv.weight": (72, 24),
        "attn.q_norm.weight": (24,),
        "attn.k_norm.weight": (24,),
        **linear("attn.proj", 24, 24),
        **linear("mlp.fc1", 36, 24),
        **linear("mlp.fc2", 24, 36),
    }
    tower = {
        "vision_model.embeddings.class_embedding": (1, 1, 24),
        "vision_model.embeddings.patch_embedding.weight": (24, 3, 4, 4),
        "vision_model.embeddings.patch_embedding.bias": (24,),
        "vision_model.embeddings.position_embedding": (1, 10, 24),
        **under("vision_model.encoder.layers.#", block, 2),
        **layer_norm("mlp1.0", 96),
        **linear("mlp1.1", 48, 96),
        **linear("mlp1.3", 48, 48),
    }
    assert on_disk(config) == {**tower, **{f"language_model.{name}": shape for name, shape in on_disk(text).items()}}


def test_a_composite_around_an_unknown_language_model_has_no_table() -> None:
    outer = {"model_type": "llava", "vision_config": {"model_type": "clip_vision_model"}}
    assert find(ConfigView({**outer, "text_config": {"model_type": "nobody knows"}})) is None
    assert find(ConfigView({**outer, "text_config": {"model_type": "mistral"}})) is not None


def test_layers_of_an_encoder_behind_the_one_that_is_taken_are_not_the_engines() -> None:
    view, architecture = table({"model_type": "llava", **CASES["llava"][0].config})
    layers = {
        (i, bool(spec.engine))
        for spec in architecture.params(view)
        if spec.module.startswith("vision_tower.encoder.layers")
        for i in spec.layers or ()
    }
    # The second last of three layers is taken.
    assert layers == {(0, True), (1, True), (2, False)}


# Layouts.


def test_the_layout_of_experts_is_read_from_the_files() -> None:
    view, usual = table({"model_type": "qwen3_vl_moe", **CASES["qwen3_vl_moe"][0].config})
    gate_up = "model.language_model.layers.0.mlp.experts.gate_up_proj"
    assert shapes(usual, view)[gate_up] == (4, 44, 48)
    assert fitting(usual, view, tensors(shapes(usual, view))) is usual
    published, apart = (shapes(Architecture(usual.model_type, build, usual.attend), view) for build in usual.variants)
    assert published[gate_up] == (4, 48, 44)
    assert shapes(fitting(usual, view, tensors(published)), view) == published
    assert apart["model.language_model.layers.0.mlp.experts.3.up_proj.weight"] == (22, 48)
    assert shapes(fitting(usual, view, tensors(apart)), view) == apart


@pytest.mark.parametrize("model_type", ["qwen3_5_moe", "llama4", "gemma4"])
def test_experts_apart_or_stacked(model_type: str) -> None:
    view, usual = table({"model_type": model_type, **CASES[model_type][0].config})
    for build in usual.variants:
        other = shapes(Architecture(model_type, build, usual.attend), view)
        assert other.keys() != shapes(usual, view).keys()
        assert shapes(fitting(usual, view, tensors(other)), view) == other


def test_quantized_experts_apart_are_known_by_their_modules() -> None:
    view, usual = table({"model_type": "llama4", **CASES["llama4"][0].config})
    apart = shapes(Architecture("llama4", usual.variants[0], usual.attend), view)
    packed = {
        name.replace(".weight", ".weight_packed") if ".experts." in name else name: shape
        for name, shape in apart.items()
    }
    assert shapes(fitting(usual, view, tensors(packed)), view) == apart


# Draft layers.


def test_deepseek_draft_layer_is_a_sparse_layer_with_tables_of_its_own() -> None:
    config = {"model_type": "deepseek_v3", **CASES["deepseek_v3"][0].config}
    usual = {
        name.removeprefix("model.layers.2."): shape
        for name, shape in on_disk(config).items()
        if name.startswith("model.layers.2.")
    }
    beside: Shapes = {
        "embed_tokens.weight": (80, 48),
        "enorm.weight": (48,),
        "hnorm.weight": (48,),
        "eh_proj.weight": (48, 96),
        "shared_head.norm.weight": (48,),
        "shared_head.head.weight": (80, 48),
    }
    assert on_disk({**config, "num_nextn_predict_layers": 0}, draft=True) == {}
    found = on_disk({**config, "num_nextn_predict_layers": 1}, draft=True)
    assert found == under("model.layers.#", {**usual, **beside}, start=3)


def test_qwen3_next_draft_layer_is_a_full_attention_layer() -> None:
    config = {"model_type": "qwen3_next", **CASES["qwen3_next"][0].config}
    usual = {
        name.removeprefix("model.layers.1."): shape
        for name, shape in on_disk(config).items()
        if name.startswith("model.layers.1.")
    }
    beside: Shapes = {
        "mtp.fc.weight": (48, 96),
        "mtp.pre_fc_norm_embedding.weight": (48,),
        "mtp.pre_fc_norm_hidden.weight": (48,),
        "mtp.norm.weight": (48,),
    }
    assert on_disk({**config, "num_nextn_predict_layers": 1}, draft=True) == {**under("mtp.layers.#", usual), **beside}


def test_nemotron_h_draft_step_is_two_blocks() -> None:
    config = {"model_type": "nemotron_h", **CASES["nemotron_h"][0].config}
    found = on_disk({**config, "num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"}, draft=True)
    usual = on_disk(config)  # "M-*E"
    for theirs, ours in ((2, 0), (3, 1)):
        for name, shape in usual.items():
            if name.startswith(f"backbone.layers.{theirs}."):
                assert found.pop(name.replace(f"backbone.layers.{theirs}.", f"mtp.layers.{ours}.")) == shape
    assert found == {
        "mtp.layers.0.enorm.weight": (48,),
        "mtp.layers.0.hnorm.weight": (48,),
        "mtp.layers.0.eh_proj.weight": (48, 96),
        "mtp.layers.1.final_layernorm.weight": (48,),
    }
