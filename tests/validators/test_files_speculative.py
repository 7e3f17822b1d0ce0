"""Speculative decoding: settings that the engine refuses, and a draft against its target (512 tokens, 4 heads)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlload.checkpoint.finding import MlloadError
from mlload.plan.mesh import Mesh
from mlload.validators.speculative_config import parse_speculative
from mlload.validators.verdict import Verdict
from tests.validators.build import LLAMA, llama, of
from tests.validators.build import verdict as verdict_of
from tests.validators.served import judged, tokenizer_json, write_model


def asked(settings: Any, *, mesh: Mesh | None = None, config: dict[str, Any] = LLAMA, **request: Any) -> Verdict:
    typed = settings if isinstance(settings, str) else json.dumps(settings)
    return verdict_of(config, llama(LLAMA), mesh=mesh, speculative=parse_speculative(typed), **request)


def codes(verdict: Verdict) -> list[tuple[str, str, str]]:
    return [(f.code, f.severity, f.question) for f in verdict.findings if f.code.startswith("DR")]


NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
REFUSED = ("DR001", "error", "starts")


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "ngram", "num_speculative_tokens": 3},
        {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
        {"model": "ngram", "num_speculative_tokens": 3},
        {"method": "suffix"},
        "ngram",
    ],
)
def test_settings_that_start(settings: Any) -> None:
    verdict = asked(settings)
    assert (codes(verdict), verdict.starts) == ([], True)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"method": "ngram"}, "num_speculative_tokens is not given"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "not a number above 0"),
        (
            {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 5, "prompt_lookup_max": 4},
            "5 is above",
        ),
        ({"method": "medusa", "num_speculative_tokens": 3}, "no method 'medusa'"),
        ({"method": "eagle", "num_speculative_tokens": 3}, "needs a draft model"),
        ({"num_speculative_tokens": 3}, "needs a draft model"),
        ({"method": "ngram", "num_speculative_tokens": 3, "tensor_parallel_size": 2}, "draft_tensor_parallel_size"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], says: str) -> None:
    verdict = asked(settings)
    assert codes(verdict) == [REFUSED] and verdict.starts is False
    assert says in of(verdict, "DR001")[0].message


@pytest.mark.parametrize(("size", "tp", "fine"), [(1, 4, True), (4, 4, True), (2, 4, False), (2, 1, False)])
def test_the_drafts_own_size(tmp_path: Path, size: int, tp: int, fine: bool) -> None:
    folder = write_model(tmp_path)
    settings = {"model": str(folder), "num_speculative_tokens": 3, "draft_tensor_parallel_size": size}
    found = codes(asked(settings, mesh=Mesh(tp=tp)))
    assert found == ([] if fine else [REFUSED])


@pytest.mark.parametrize("typed", ["{", '{"model": ', "{]"])
def test_json_that_is_none_is_one_sentence(typed: str) -> None:
    with pytest.raises(MlloadError, match="no valid JSON"):
        parse_speculative(typed)


def test_a_draft_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(MlloadError):
        parse_speculative(str(tmp_path / "nothing"))


# A draft of its own.
def test_a_fitting_draft_is_clean(tmp_path: Path) -> None:
    assert codes(asked(str(write_model(tmp_path)))) == []


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path, vocab_size=576)
    verdict = asked(str(folder))
    assert ("DR002", "error", "starts") in codes(verdict)
    assert of(verdict, "DR002")[0].numbers == {"draft": 576, "target": 512}
    settings = {"model": str(folder), "num_speculative_tokens": 3, "use_heterogeneous_vocab": True}
    assert of(asked(settings), "DR002") == []


def test_another_tokenizer_of_the_same_size_is_slow(tmp_path: Path) -> None:
    target = write_model(tmp_path / "target")
    other = tokenizer_json()
    other["model"]["vocab"] = {f"w{499 - number}": number for number in range(500)}
    twin, stranger = write_model(tmp_path / "twin"), write_model(tmp_path / "other", {"tokenizer.json": other})
    assert codes(judged(target, speculative=parse_speculative(str(twin)))) == []
    verdict = judged(target, speculative=parse_speculative(str(stranger)))
    assert codes(verdict) == [("DR002", "warning", "right")] and verdict.starts is True


def test_a_draft_must_divide_too(tmp_path: Path) -> None:
    """3 heads at tp 2: 3 % 2 = 1. With its own size of 1 it is whole on every rank."""
    folder = write_model(tmp_path, num_attention_heads=3, num_key_value_heads=3)
    settings = {"model": str(folder), "num_speculative_tokens": 3}
    verdict = asked(settings, mesh=Mesh(tp=2))
    assert any("3 % 2 = 1" in finding.message or "3 " in finding.message for finding in of(verdict, "TP001"))
    assert verdict.starts is False
    alone = asked({**settings, "draft_tensor_parallel_size": 1}, mesh=Mesh(tp=2))
    assert of(alone, "TP001") == []


def test_a_damaged_draft(tmp_path: Path) -> None:
    path = write_model(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    verdict = asked(str(tmp_path))
    assert verdict.starts is False
    assert any(f.message.startswith("draft model") and str(tmp_path) in f.where for f in verdict.findings)


def test_a_shorter_draft_is_mentioned(tmp_path: Path) -> None:
    folder = write_model(tmp_path, max_position_embeddings=256)
    verdict = asked(str(folder))
    assert codes(verdict) == [("DR005", "info", "right")]
    assert of(verdict, "DR005")[0].numbers == {"draft": 256, "target": 1024}
    assert codes(asked(str(folder), max_model_len=256)) == []
    longer = {"model": str(folder), "num_speculative_tokens": 3, "max_model_len": 512}
    assert codes(asked(longer)) == [("DR005", "error", "starts")]


# Heads that read the target's states.
@pytest.mark.parametrize(("fields", "fine"), [({}, True), ({"hidden_size": 320}, False), ({"vocab_size": 600}, False)])
def test_a_draft_head_is_as_wide_as_its_target(tmp_path: Path, fields: dict[str, Any], fine: bool) -> None:
    folder = write_model(tmp_path / "eagle-head", architectures=["LlamaForCausalLMEagle3"], **fields)
    verdict = asked({"method": "eagle3", "model": str(folder), "num_speculative_tokens": 3})
    assert (codes(verdict) == []) is fine


def test_a_head_that_reads_a_layer_that_is_not_there(tmp_path: Path) -> None:
    folder = write_model(tmp_path, eagle_aux_hidden_state_layer_ids=[1, 2, 9])
    verdict = asked({"method": "eagle3", "model": str(folder), "num_speculative_tokens": 3})
    assert codes(verdict) == [("DR004", "error", "starts")]
    assert of(verdict, "DR004")[0].numbers == {"layer": 9, "layers": 4}


# Multi-token prediction.
def test_a_model_without_draft_layers() -> None:
    verdict = asked({"method": "mtp", "num_speculative_tokens": 1})
    assert codes(verdict) == [("DR003", "error", "starts")]


@pytest.mark.parametrize(("tokens", "fine"), [(1, True), (2, True), (3, False), (4, True)])
def test_tokens_are_a_multiple_of_the_layers(tokens: int, fine: bool) -> None:
    """2 draft layers: 1 and any multiple of 2 start; 3 % 2 = 1."""
    config = {**LLAMA, "num_nextn_predict_layers": 2}
    verdict = asked({"method": "mtp", "num_speculative_tokens": tokens}, config=config)
    assert (REFUSED in codes(verdict)) is not fine


@pytest.mark.parametrize("name", ["deepseek-v3"])
def test_a_model_that_brings_its_draft_layers(skeleton: Any, name: str) -> None:
    settings = parse_speculative('{"method": "mtp", "num_speculative_tokens": 1}')
    assert codes(judged(Path(skeleton(name)), mesh=Mesh(tp=8), speculative=settings)) == []


ODD: list[Any] = [None, True, -1, 2.5, "x", [], {}, [None]]


@pytest.mark.parametrize("value", ODD, ids=[repr(value) for value in ODD])
def test_odd_settings_are_findings(tmp_path: Path, value: Any) -> None:
    fields = ("method", "num_speculative_tokens", "draft_tensor_parallel_size", "prompt_lookup_min", "max_model_len")
    settings = {"model": str(write_model(tmp_path)), **dict.fromkeys(fields, value)}
    assert [unknown.what for unknown in asked(settings).unknowns] == []
