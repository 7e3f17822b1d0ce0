"""The view of config.json: renamed, nested, missing and nonsensical fields. Numbers are those of known faults."""

from __future__ import annotations

from typing import Any

import pytest

from mlload.checkpoint.config import ConfigView
from mlload.checkpoint.config_defaults import defaults_of


def test_fields_are_found_under_older_spellings() -> None:
    gpt2 = ConfigView({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": 3072})
    assert (gpt2.hidden, gpt2.layers, gpt2.heads, gpt2.head_dim, gpt2.intermediate) == (768, 12, 12, 64, 3072)


def test_case_2_fields_of_a_nested_language_model_are_found() -> None:
    view = ConfigView(
        {"model_type": "internvl_chat", "llm_config": {"model_type": "qwen2", "intermediate_size": 29568}}
    )
    assert view.intermediate == 29568
    assert view.text_type == "qwen2"


def test_a_language_model_nested_twice_is_found() -> None:
    view = ConfigView({"thinker_config": {"text_config": {"hidden_size": 2048}}})
    assert view.hidden == 2048


def test_nested_fields_win_over_outer_ones_and_outer_ones_fill_gaps() -> None:
    view = ConfigView({"hidden_size": 1, "torch_dtype": "bfloat16", "text_config": {"hidden_size": 2}})
    assert view.hidden == 2
    assert view.get("torch_dtype") == "bfloat16"


def test_a_nested_model_without_a_type_has_the_one_that_its_class_gives_it() -> None:
    view = ConfigView({"model_type": "gemma3", "text_config": {"hidden_size": 2560}})
    assert view.text_type == "gemma3_text"
    assert view.head_dim == 256  # Gemma3TextConfig's own default, not 2560 / heads


def test_class_defaults_fill_what_a_config_leaves_out() -> None:
    assert ConfigView({"model_type": "gemma"}).head_dim == 256
    assert ConfigView({"model_type": "gemma"}).tied is True
    assert ConfigView({"model_type": "llama"}).tied is False
    assert ConfigView({"model_type": "a type that nobody knows"}).hidden == 0


def test_a_written_null_switches_a_field_off_and_gets_no_default() -> None:
    absent = ConfigView({"model_type": "deepseek_v2"})
    null = ConfigView({"model_type": "deepseek_v2", "q_lora_rank": None})
    assert absent.size("q_lora_rank") == 1536  # DeepseekV2Config's default
    assert null.size("q_lora_rank") == 0


def test_key_value_heads_default_to_heads_where_the_class_says_so() -> None:
    assert ConfigView({"model_type": "llama", "num_attention_heads": 12}).kv_heads == 12
    assert ConfigView({"model_type": "qwen2", "num_attention_heads": 12, "num_key_value_heads": None}).kv_heads == 12


@pytest.mark.parametrize(
    ("fields", "kv_heads"),
    [
        ({"multi_query": True, "num_kv_heads": 71}, 1),
        ({"multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 8}, 8),
        ({"multi_query": False}, 71),
        ({}, 1),  # multi_query is on by default
    ],
)
def test_falcons_key_value_heads(fields: dict[str, Any], kv_heads: int) -> None:
    assert ConfigView({"model_type": "falcon", "num_attention_heads": 71, **fields}).kv_heads == kv_heads


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_case_22_rope_of_type_default_is_not_scaled(key: str) -> None:
    rope = ConfigView({key: {"rope_type": "default", "rope_theta": 1e6}}).rope
    assert not rope.scaled
    assert rope.theta == 1e6
    assert rope.original is None


def test_case_23_both_spellings_of_the_rope_type_are_read_and_told_apart() -> None:
    old = ConfigView({"rope_scaling": {"type": "linear", "factor": 4}, "rope_theta": 10000}).rope
    new = ConfigView({"rope_scaling": {"rope_type": "llama3", "original_max_position_embeddings": 8192}}).rope
    assert (old.type, old.spelled, old.factor, old.theta, old.scaled) == ("linear", "type", 4.0, 10000.0, True)
    assert (new.type, new.spelled, new.original, new.scaled) == ("llama3", "rope_type", 8192, True)


def test_rope_per_kind_of_layer_means_the_one_that_sees_everything() -> None:
    fields = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000},
    }
    assert ConfigView({"rope_parameters": fields}).rope.factor == 8.0


def test_case_25_a_missing_head_dim_is_hidden_over_heads() -> None:
    view = ConfigView({"model_type": "mistral", "hidden_size": 4096, "num_attention_heads": 24})
    assert view.given("head_dim") is None
    assert view.head_dim == 170  # 4096 / 24 rounded down: what a class would do, and the files contradict


def test_case_26_a_given_head_dim_needs_no_division() -> None:
    view = ConfigView({"model_type": "qwen3", "hidden_size": 1792, "num_attention_heads": 24, "head_dim": 128})
    assert view.head_dim == 128


@pytest.mark.parametrize(
    ("outer", "nested", "tied"),
    [
        (True, None, True),  # cases 28 and 32: a plain config that says so
        (False, None, False),  # case 29
        (False, True, False),  # case 30: the outer class decides
        (None, True, True),  # case 31: only the nested one says so
        (None, None, False),  # the class's default
    ],
)
def test_cases_28_to_32_whose_word_on_tied_heads_counts(outer: bool | None, nested: bool | None, tied: bool) -> None:
    text: dict[str, Any] = {"model_type": "qwen3_vl_text"}
    config: dict[str, Any] = {"model_type": "qwen3_vl", "text_config": text}
    if outer is not None:
        config["tie_word_embeddings"] = outer
    if nested is not None:
        text["tie_word_embeddings"] = nested
    view = ConfigView(config)
    assert view.tied is tied
    assert view.tie_words == (outer, nested)


def test_case_40_a_quantization_config_in_the_nested_config_is_found() -> None:
    view = ConfigView({"text_config": {"quantization_config": {"quant_method": "compressed-tensors"}}})
    assert view.get("quantization_config") == {"quant_method": "compressed-tensors"}


def test_case_44_experts_are_counted_under_every_name() -> None:
    for name in ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"):
        assert ConfigView({name: 8}).experts == 8


@pytest.mark.parametrize("nonsense", ["many", -1, 10**30, 1.5, [4096], {"a": 1}, True, float("nan"), float("inf")])
def test_nonsense_counts_as_absent_and_is_told(nonsense: Any) -> None:
    view = ConfigView({"model_type": "llama", "hidden_size": nonsense})
    assert view.hidden == 4096  # LlamaConfig's default
    assert repr(view.problems) == repr({"hidden_size": nonsense})


def test_more_layers_than_any_model_has_are_nonsense() -> None:
    view = ConfigView({"num_hidden_layers": 10**9})
    assert view.layers == 0
    assert view.problems == {"num_hidden_layers": 10**9}


def test_whole_floats_are_sizes_and_strings_are_no_switches() -> None:
    view = ConfigView({"hidden_size": 4096.0, "attention_bias": "false"})
    assert view.hidden == 4096
    assert view.flag("attention_bias") is False
    assert view.problems == {"attention_bias": "false"}


@pytest.mark.parametrize("raw", [None, [], "llama", 3, {"text_config": []}, {"model_type": ["llama"]}])
def test_what_is_no_config_at_all_is_an_empty_one(raw: Any) -> None:
    view = ConfigView(raw)
    assert (view.hidden, view.layers, view.tied, view.architectures) == (0, 0, False, ())


@pytest.mark.parametrize("name", ["num_hidden_layers", "num_experts"])
def test_what_is_looped_over_is_bounded(name: str) -> None:
    assert ConfigView({name: 4096}).size(name) == 4096
    view = ConfigView({name: 10**9})
    assert view.size(name) == 0 and view.problems == {name: 10**9}


def test_defaults_name_fields_canonically() -> None:
    assert defaults_of("gpt2")["hidden_size"] == 768
    assert defaults_of("mixtral")["num_experts"] == 8
    assert defaults_of("nobody") == {}


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({"layers_block_type": ["mamba", "moe", "attention"]}, 3),
        ({"hybrid_override_pattern": "M-M*E"}, 5),
        ({"hybrid_override_pattern": "M-M*E", "num_hidden_layers": 4}, 4),
        ({"hybrid_override_pattern": "M" * 5000}, 0),
        ({"layers_block_type": 7}, 0),
    ],
)
def test_a_pattern_counts_layers_where_nobody_else_does(config: dict[str, Any], layers: int) -> None:
    assert ConfigView({"model_type": "nemotron_h", **config}).layers == layers
