"""GGUF metadata as a config, and GGUF's names: held against the gguf package and transformers' own mapping."""

from __future__ import annotations

from typing import Any

import pytest

from mlload.checkpoint.config import ConfigView
from mlload.checkpoint.gguf_config import FIELDS, MODEL_TYPES, config_from_gguf
from mlload.checkpoint.gguf_names import gguf_module, hf_module
from mlload.checkpoint.tensor import TensorRef
from mlload.plan.architectures import find
from mlload.plan.architectures.gguf import as_gguf

# SmolLM2-135M's metadata, as its GGUF file has it.
SMOLLM2: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 30,
    "llama.context_length": 8192,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.rope.freq_base": 100000.0,
    "llama.rope.dimension_count": 64,
}


def tensor(name: str, *shape: int) -> dict[str, TensorRef]:
    return {name: TensorRef(name, "F32", shape, 0, 0, 0)}


def test_metadata_of_a_real_file() -> None:
    config = config_from_gguf(SMOLLM2, tensor("token_embd.weight", 49152, 576))
    view = ConfigView(config)
    assert config["model_type"] == "llama"
    assert (view.layers, view.hidden, view.heads, view.kv_heads, view.head_dim) == (30, 576, 9, 3, 64)
    assert (view.intermediate, view.vocab, view.size("max_position_embeddings")) == (1536, 49152, 8192)
    assert view.tied  # there is no output.weight
    assert view.rope.theta == 100000.0


def test_a_head_of_its_own_is_not_tied() -> None:
    tensors = tensor("token_embd.weight", 64, 8) | tensor("output.weight", 64, 8)
    assert config_from_gguf(SMOLLM2, tensors)["tie_word_embeddings"] is False


def test_a_llama_with_experts_is_a_mixtral() -> None:
    config = config_from_gguf({**SMOLLM2, "llama.expert_count": 8, "llama.expert_used_count": 2}, {})
    assert config["model_type"] == "mixtral"
    assert config["num_experts"] == 8


def test_values_per_layer_count_where_they_are_all_the_same() -> None:
    key = "llama.attention.head_count_kv"
    assert config_from_gguf({**SMOLLM2, key: [3, 3, 3]}, {})["num_key_value_heads"] == 3
    assert "num_key_value_heads" not in config_from_gguf({**SMOLLM2, key: [3, 1, 3]}, {})


def test_rope_scaling_is_carried_over() -> None:
    scaled = {
        **SMOLLM2,
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 32768,
    }
    rope = ConfigView(config_from_gguf(scaled, {})).rope
    assert (rope.type, rope.factor, rope.original) == ("yarn", 4.0, 32768)


@pytest.mark.parametrize("metadata", [{}, {"general.architecture": 3}, {"general.architecture": None}])
def test_without_an_architecture_there_is_no_config(metadata: dict[str, Any]) -> None:
    assert config_from_gguf(metadata, {}) == {}


@pytest.mark.parametrize("architecture", sorted(MODEL_TYPES))
def test_fields_are_those_that_transformers_reads(architecture: str) -> None:
    ggml = pytest.importorskip("transformers.integrations.ggml")
    theirs = ggml.GGUF_CONFIG_MAPPING.get(MODEL_TYPES[architecture].removesuffix("_text"))
    if theirs is None:
        pytest.skip(f"transformers does not read {architecture}")
    for key, field in theirs.items():
        # rope.dimension_count is read where nothing better is there, and no size hangs on an epsilon.
        if field is None or key == "rope.dimension_count" or "epsilon" in key:
            continue
        assert FIELDS[key] == field


@pytest.mark.parametrize(("architecture", "model_type"), [*MODEL_TYPES.items(), ("llama", "mixtral")])
def test_names_are_those_of_the_gguf_package(architecture: str, model_type: str) -> None:
    gguf = pytest.importorskip("gguf")
    from gguf.tensor_mapping import get_tensor_name_map

    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    names = get_tensor_name_map(numbers[architecture], 1)
    table = find(ConfigView({"model_type": model_type, "num_hidden_layers": 1}))
    assert table is not None
    compared = 0
    for spec in table.params(ConfigView({"model_type": model_type, "num_hidden_layers": 1})):
        if spec.optional:
            continue
        module = spec.module.replace("{layer}", "0")
        # The package knows stacked experts without a number, Mixtral's with any.
        theirs = names.get_name(module.replace(".{expert}", "")) or names.get_name(module.replace("{expert}", "0"))
        if theirs is None:
            assert spec.alias_of  # no head: Gemma, Cohere
            continue
        assert gguf_module(module, model_type) == theirs
        assert hf_module(theirs, model_type) == module
        compared += 1
    assert compared > 8


def test_what_has_no_counterpart_has_none() -> None:
    assert hf_module("rope_freqs", "llama") is None
    assert hf_module("blk.0.no_such_thing", "llama") is None
    assert gguf_module("model.layers.0.no_such_thing", "llama") is None
    assert gguf_module("transformer.wte", "llama") is None


def test_experts_are_one_tensor_in_gguf() -> None:
    config = ConfigView({"model_type": "qwen3_moe", "num_hidden_layers": 2, "hidden_size": 64, "num_experts": 4})
    config.raw["moe_intermediate_size"] = 24
    table = find(config)
    assert table is not None
    found = {spec.module: spec for spec in as_gguf(table).params(config)}
    gate, down = found["blk.{layer}.ffn_gate_exps"], found["blk.{layer}.ffn_down_exps"]
    assert (gate.shape, gate.axes, gate.style) == ((4, 24, 64), ("E", "N", "K"), "column")
    assert (down.shape, down.axes, down.style) == ((4, 64, 24), ("E", "N", "K"), "row")
    assert gate.experts is None
    assert gate.engine == "model.layers.{layer}.mlp.experts.routed_experts"
