"""Profiles are found by engine and version, in short or in full."""

from __future__ import annotations

import pytest

from mlload.checkpoint.finding import MlloadError
from mlload.profiles import available, load, loading, parse_engine


def test_a_short_version_is_the_newest_of_its_series() -> None:
    assert load("vllm", "0.33").version == "0.33.0"
    assert load("vllm@0.33.0").version == "0.33.0"
    assert load("vllm@0.32").version == "0.32.0"


def test_there_are_two_minor_versions_of_vllm() -> None:
    assert {version.rsplit(".", 1)[0] for version in available("vllm")} >= {"0.32", "0.33"}


def test_a_version_without_a_profile_cannot_be_judged() -> None:
    with pytest.raises(MlloadError) as caught:
        load("vllm", "0.11")
    assert caught.value.exit_code == 3
    assert "0.33.0" in caught.value.message


def test_an_unknown_engine_is_wrong_usage() -> None:
    with pytest.raises(MlloadError) as caught:
        parse_engine("sglang@1")
    assert caught.value.exit_code == 2


def test_without_a_version_an_installed_engine_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_installed", lambda engine: "0.32.3")
    found = load("vllm")
    assert (found.version, found.installed) == ("0.32.0", True)


def test_without_an_installed_engine_the_newest_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_installed", lambda engine: None)
    found = load("vllm")
    assert (found.version, found.installed) == (available("vllm")[-1], False)


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_engines_without_versions_say_what_they_cannot_judge_yet(engine: str) -> None:
    found = load(engine)
    assert found.engine == engine
    assert found.value("not_yet")
    assert found.vocab_padding == 1
    assert found.pipeline("LlamaForCausalLM") is None


def test_what_planning_needs_has_names_and_sources() -> None:
    vllm = load("vllm", "0.33.0")
    assert vllm.vocab_padding == 64
    assert vllm.source("vocab_padding") == "model_executor/layers/vocab_parallel_embedding.py:36"
    assert vllm.tower_mode == "weights"
    assert vllm.pipeline("LlamaForCausalLM") is True
    assert vllm.pipeline("BertModel") is False
    assert vllm.checks_experts("Qwen3MoeForCausalLM")
    assert not vllm.checks_experts("MixtralForCausalLM")
    assert not vllm.checks_experts("DeepseekV3ForCausalLM")
    assert vllm.tower_can_replicate("Qwen2_5_VLForConditionalGeneration")
    assert "sharded_state" in vllm.load_formats


def test_dtypes_of_a_gpu_preferred_first() -> None:
    vllm = load("vllm", "0.33.0")
    assert vllm.dtypes((9, 0)) == ("bfloat16", "float16", "float32")
    assert vllm.dtypes((7, 5)) == ("float16", "float32")
    assert vllm.dtypes((5, 2)) == ("float32",)
