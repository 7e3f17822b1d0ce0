"""What holds for every table, and the types that transformers has no class for, against lists written by hand."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlload.checkpoint.config import ConfigView
from mlload.checkpoint.config_defaults import defaults_of
from mlload.plan.architectures import Architecture, AttentionSpec, find, model_types
from mlload.plan.params import ParamSpec
from tests.plan.architecture_cases import CASES

# Their classes come with the checkpoint, or are older than the library: nothing to build them with here.
WITHOUT_CLASS = {
    "baichuan",
    "chatglm",
    "internlm2",
    "internvl_chat",
    "kimi_k2",
    "kimi_k25",
    "mimo",
    "minicpm",
    "nemotron-nas",
}

ALL_CASES = [
    pytest.param({"model_type": model_type, **case.config}, id=f"{model_type}-{i}")
    for model_type, cases in sorted(CASES.items())
    for i, case in enumerate(cases)
]


def table(config: dict[str, Any]) -> tuple[ConfigView, Architecture]:
    view = ConfigView(config)
    architecture = find(view)
    assert architecture is not None
    return view, architecture


def on_disk(config: dict[str, Any], *, draft: bool = False) -> dict[str, tuple[int, ...]]:
    """Tensors of one model: name -> shape, without what may be absent."""
    view, architecture = table(config)
    found = {}
    for spec in architecture.params(view):
        if spec.alias_of or spec.engine_only or spec.draft is not draft or (spec.optional and not draft):
            continue
        for module in spec.modules():
            found[spec.tensor(module)] = spec.shape
            if spec.bias:
                found[spec.tensor(module, spec.bias)] = spec.bias_shape
    return found


def test_every_type_is_compared_with_a_class_or_known_to_have_none() -> None:
    assert set(model_types()) - set(CASES) <= WITHOUT_CLASS
    assert len(model_types()) == len(set(model_types()))


@pytest.mark.parametrize("config", ALL_CASES)
def test_parts_fill_the_axis_that_they_cut(config: dict[str, Any]) -> None:
    view, architecture = table(config)
    for spec in architecture.params(view):
        assert len(spec.shape) == len(spec.axes)
        if spec.style == "replicated":
            assert not spec.parts
            continue
        axis = {"column": "N", "vocab": "N", "row": "K"}[spec.style]
        assert sum(part.length for part in spec.parts) == spec.shape[spec.axes.index(axis)], spec.module
        for part in spec.parts:
            assert part.length % part.unit == 0, spec.module
            assert part.length % spec.groups == 0, spec.module


@pytest.mark.parametrize("config", ALL_CASES)
def test_references_between_modules_hold(config: dict[str, Any]) -> None:
    view, architecture = table(config)
    specs = architecture.params(view)
    modules = {spec.module for spec in specs}
    for spec in specs:
        assert ("{layer}" in spec.module) == (spec.layers is not None), spec.module
        assert ("{expert}" in spec.module) == (spec.experts is not None), spec.module
        assert spec.alias_of is None or spec.alias_of in modules, spec.module
        assert spec.wiring is None or spec.wiring in modules, spec.module
        assert spec.engine or spec.optional or spec.component in ("head", "norm", "mlp", "vision"), spec.module
        # A fused module of the engine has one class.
        assert len({other.kind for other in specs if other.engine == spec.engine and spec.engine}) <= 1, spec.engine


@pytest.mark.parametrize("config", ALL_CASES)
def test_every_layer_remembers_positions_once_and_states_once(config: dict[str, Any]) -> None:
    view, architecture = table(config)
    for recurrent in (False, True):
        groups = [group for group in architecture.attention(view) if (group.kind in ("linear", "ssm")) is recurrent]
        seen = [layer for group in groups for layer in group.layers]
        assert sorted(set(seen)) == sorted(seen)


@pytest.mark.parametrize("model_type", model_types())
def test_no_config_makes_a_table_fail(model_type: str) -> None:
    """A config is somebody else's file: any field may hold anything."""
    dice = random.Random(model_type)
    values: list[Any] = [
        None,
        -1,
        0,
        1,
        3,
        7,
        2**62,
        1.5,
        "x",
        "",
        [],
        [None, "full_attention", 3],
        {},
        {"a": []},
        True,
        False,
    ]
    fields = sorted({*defaults_of(model_type), "layer_types", "head_dim", "text_config", "vision_config"})
    for _ in range(12):
        config = {field: dice.choice(values) for field in fields if dice.random() < 0.6}
        view = ConfigView({**config, "model_type": model_type})
        architecture = find(view)
        if architecture is None:
            inside = find(view, text=True)
            assert inside is None or inside.nested
            continue
        for spec in architecture.params(view):
            assert all(size >= 0 for size in spec.shape)
            assert spec.count >= 0
        architecture.attention(view)


def test_only_the_family_that_is_asked_for_is_imported() -> None:
    script = (
        "import sys; from mlload.checkpoint.config import ConfigView; from mlload.plan.architectures import find;"
        "find(ConfigView({'model_type': 'llama'})); print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "mlload.plan.architectures.llama" in loaded
    assert "mlload.plan.architectures.qwen" not in loaded
    assert not {"torch", "numpy", "transformers", "asyncio", "http"} & set(loaded)


def test_an_unknown_type_has_no_table() -> None:
    assert find(ConfigView({"model_type": "a type that nobody knows"})) is None
    assert find(ConfigView({})) is None


# Remote code: names and shapes by hand, from the models' published code and files.


def layers(count: int, root: str, modules: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {f"{root}.{i}.{name}": shape for i in range(count) for name, shape in modules.items()}


SIZES = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 80, "intermediate_size": 40}


def test_internlm2() -> None:
    found = on_disk({"model_type": "internlm2", **SIZES, "num_key_value_heads": 2, "bias": False})
    assert found == {
        "model.tok_embeddings.weight": (80, 48),
        **layers(
            2,
            "model.layers",
            {
                "attention_norm.weight": (48,),
                "attention.wqkv.weight": (96, 48),  # (4 + 2 x 2) heads of 12
                "attention.wo.weight": (48, 48),
                "ffn_norm.weight": (48,),
                "feed_forward.w1.weight": (40, 48),
                "feed_forward.w3.weight": (40, 48),
                "feed_forward.w2.weight": (48, 40),
            },
        ),
        "model.norm.weight": (48,),
        "output.weight": (80, 48),
    }


def test_internlm2_keeps_a_key_head_beside_the_query_heads_that_use_it() -> None:
    view, architecture = table({"model_type": "internlm2", **SIZES, "num_key_value_heads": 2})
    wqkv = next(spec for spec in architecture.params(view) if spec.module.endswith("wqkv"))
    # Two groups, each of two query heads, a key head and a value head.
    assert wqkv.groups == 2
    assert [(part.role, part.length, part.unit) for part in wqkv.parts] == [("q", 48, 12), ("k", 24, 12), ("v", 24, 12)]


def test_minicpm_has_the_names_of_llama() -> None:
    config = {**SIZES, "num_key_value_heads": 4, "tie_word_embeddings": True}
    assert on_disk({"model_type": "minicpm", **config}) == on_disk({"model_type": "llama", **config})


def test_mimo_is_a_qwen2_with_draft_layers_beside() -> None:
    config = {**SIZES, "num_key_value_heads": 2, "tie_word_embeddings": False, "num_nextn_predict_layers": 1}
    assert on_disk({"model_type": "mimo", **config}) == on_disk({"model_type": "qwen2", **config})
    assert on_disk({"model_type": "mimo", **config}, draft=True) == layers(
        1,
        "model.mtp_layers",
        {
            "token_layernorm.weight": (48,),
            "hidden_layernorm.weight": (48,),
            "input_proj.weight": (48, 96),
            "input_layernorm.weight": (48,),
            "self_attn.q_proj.weight": (48, 48),
            "self_attn.q_proj.bias": (48,),
            "self_attn.k_proj.weight": (24, 48),
            "self_attn.k_proj.bias": (24,),
            "self_attn.v_proj.weight": (24, 48),
            "self_attn.v_proj.bias": (24,),
            "self_attn.o_proj.weight": (48, 48),
            "post_attention_layernorm.weight": (48,),
            "mlp.gate_proj.weight": (40, 48),
            "mlp.up_proj.weight": (40, 48),
            "mlp.down_proj.weight": (48, 40),
            "final_layernorm.weight": (48,),
        },
    )


def test_ernie_drafts_with_a_dense_layer_beside_its_own() -> None:
    config = {**SIZES, "model_type": "ernie4_5_moe", "num_key_value_heads": 2, "num_nextn_predict_layers": 1}
    found = on_disk(config, draft=True)
    assert found["model.mtp_linear_proj.0.weight"] == (48, 96)
    assert found["model.mtp_block.0.mlp.down_proj.weight"] == (48, 40)
    assert len(found) == 3 + 9


def test_baichuan() -> None:
    assert on_disk({"model_type": "baichuan", **SIZES}) == {
        "model.embed_tokens.weight": (80, 48),
        **layers(
            2,
            "model.layers",
            {
                "input_layernorm.weight": (48,),
                "self_attn.W_pack.weight": (144, 48),
                "self_attn.o_proj.weight": (48, 48),
                "post_attention_layernorm.weight": (48,),
                "mlp.gate_proj.weight": (40, 48),
                "mlp.up_proj.weight": (40, 48),
                "mlp.down_proj.weight": (48, 40),
            },
        ),
        "model.norm.weight": (48,),
        "lm_head.weight": (80, 48),
    }


def test_chatglm() -> None:
    config = {
        "model_type": "chatglm",
        "hidden_size": 48,
        "num_layers": 2,
        "num_attention_heads": 4,
        "multi_query_attention": True,
        "multi_query_group_num": 2,
        "kv_channels": 12,
        "ffn_hidden_size": 40,
        "padded_vocab_size": 80,
        "add_qkv_bias": True,
        "add_bias_linear": False,
        "rmsnorm": True,
    }
    assert on_disk(config) == {
        "transformer.embedding.word_embeddings.weight": (80, 48),
        **layers(
            2,
            "transformer.encoder.layers",
            {
                "input_layernorm.weight": (48,),
                "self_attention.query_key_value.weight": (96, 48),
                "self_attention.query_key_value.bias": (96,),
                "self_attention.dense.weight": (48, 48),
                "post_attention_layernorm.weight": (48,),
                "mlp.dense_h_to_4h.weight": (80, 48),
                "mlp.dense_4h_to_h.weight": (48, 40),
            },
        ),
        "transformer.encoder.final_layernorm.weight": (48,),
        "transformer.output_layer.weight": (80, 48),
    }


# Memory.


def memory(config: dict[str, Any]) -> list[AttentionSpec]:
    view, architecture = table(config)
    return list(architecture.attention(view))


def windows(config: dict[str, Any]) -> dict[str, list[int]]:
    return {group.kind: list(group.layers) for group in memory(config)}


def test_keys_and_values_of_a_real_model() -> None:
    smollm2 = {
        "model_type": "llama",
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    }
    (group,) = memory(smollm2)
    per_token = len(group.layers) * group.kv_heads * (group.head_dim + group.v_head_dim) * 2
    assert per_token == 23_040  # as vLLM reports it for this model in bfloat16


def test_windows_by_layer_types() -> None:
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    config = {"model_type": "mistral", "num_hidden_layers": 3, "sliding_window": 8, "layer_types": types}
    assert windows(config) == {"full": [1], "sliding": [0, 2]}


def test_windows_where_no_layer_types_are_written() -> None:
    every = {"num_hidden_layers": 6, "sliding_window": 8}
    assert windows({"model_type": "mistral", **every}) == {"sliding": [0, 1, 2, 3, 4, 5]}
    assert windows({"model_type": "mistral", **every, "sliding_window": None}) == {"full": [0, 1, 2, 3, 4, 5]}
    assert windows({"model_type": "gemma2", **every}) == {"full": [1, 3, 5], "sliding": [0, 2, 4]}
    assert windows({"model_type": "gemma3_text", **every}) == {"full": [5], "sliding": [0, 1, 2, 3, 4]}
    assert windows({"model_type": "gpt_oss", **every}) == {"full": [1, 3, 5], "sliding": [0, 2, 4]}
    assert windows({"model_type": "olmo3", **every}) == {"full": [3], "sliding": [0, 1, 2, 4, 5]}
    assert windows({"model_type": "cohere2", **every}) == {"full": [3], "sliding": [0, 1, 2, 4, 5]}


def test_qwen_has_windows_only_where_it_says_so() -> None:
    config = {"model_type": "qwen2", "num_hidden_layers": 4, "sliding_window": 8, "max_window_layers": 3}
    assert windows(config) == {"full": [0, 1, 2, 3]}
    assert windows({**config, "use_sliding_window": True}) == {"full": [0, 1, 2], "sliding": [3]}


def test_minicpm3_caches_whole_heads_for_all_its_low_ranks() -> None:
    (group,) = memory(
        {
            "model_type": "minicpm3",
            "num_hidden_layers": 2,
            "num_attention_heads": 40,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 32,
            "v_head_dim": 64,
        }
    )
    assert (group.kind, group.kv_heads, group.head_dim, group.v_head_dim) == ("full", 40, 96, 96)


# The engine's own classes.


def truth_folder() -> Path:
    folder = os.environ.get("MLLOAD_TRUTH")
    if not folder:
        pytest.skip("MLLOAD_TRUTH is not set")
    return Path(folder)


@pytest.mark.truth
def test_engine_modules_are_those_that_vllm_names() -> None:
    folder = truth_folder()
    named: dict[str, set[str]] = {}
    for line in (folder / "truth.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["verdict"] == "ok" and row["pp"] == 1:
            named.setdefault(row["config"], set()).update(row["kernels"])
    assert len(named) > 90
    for name, keys in named.items():
        path = next(p for p in (folder / "configs" / name, folder / "public" / name) if p.exists())
        view = ConfigView(json.loads((path / "config.json").read_text(encoding="utf-8")))
        architecture = find(view)
        assert architecture is not None, view.model_type
        ours = {key(spec) for spec in architecture.params(view) if not spec.draft and spec.engine}
        theirs = {k for k in keys if not k.startswith(("Attention[", "MLAAttention["))}
        assert theirs <= ours, name
        # Whatever the engine asks its quantization config about is in its table, for there is nothing else there.
        assert {k for k in ours - theirs if "Linear[" in k or "Experts[" in k or "LMHead[" in k} == set(), name


def key(spec: ParamSpec) -> str:
    return f"{spec.kind}[{spec.engine.rpartition('.')[2]}]"
