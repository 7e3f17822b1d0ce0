"""Ids of special tokens, the generation config, processors, and Python files that auto_map names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlload.checkpoint.checkpoint import Checkpoint
from tests.validators.build import LLAMA, llama, of
from tests.validators.build import verdict as verdict_of
from tests.validators.served import found, judged, loud, one, tokenizer_json, write_model


# Ids: the table has 512 rows.
@pytest.mark.parametrize(("number", "outside"), [(511, False), (512, True), (-1, False), (-2, True), (10**9, True)])
def test_an_eos_outside_the_table(tmp_path: Path, number: int, outside: bool) -> None:
    verdict = judged(write_model(tmp_path, {"generation_config.json": {"eos_token_id": [502, number]}}))
    assert found(verdict, "FI074") == ([("warning", "FI074")] if outside else [])
    if outside:
        assert one(verdict, "FI074").numbers == {"id": number, "rows": 512}


def test_both_configs_are_looked_at(tmp_path: Path) -> None:
    files = {"generation_config.json": {"eos_token_id": 502, "pad_token_id": 600}}
    verdict = judged(write_model(tmp_path, files, bos_token_id=700))
    assert {(f.where, f.numbers["id"]) for f in of(verdict, "FI074")} == {
        ("generation_config.json: pad_token_id", 600),
        ("config.json: bos_token_id", 700),
    }


def test_a_picture_needs_a_row_too() -> None:
    config = {**LLAMA, "image_token_id": 512}
    assert [f.where for f in of(verdict_of(config, llama()), "FI074")] == ["config.json: image_token_id"]
    assert of(verdict_of({**config, "image_token_id": 511}, llama()), "FI074") == []
    assert of(verdict_of({**config, "image_token_id": -200}, llama()), "FI074") == []


@pytest.mark.parametrize("value", ["2", 2.5, {}, [], [2, "x"], True])
def test_an_eos_that_is_no_id(tmp_path: Path, value: Any) -> None:
    verdict = judged(write_model(tmp_path, {"generation_config.json": {"eos_token_id": value}}))
    assert ("error", "FI073") in found(verdict) and verdict.starts is True


@pytest.mark.parametrize(
    ("field", "value", "fine"),
    [
        ("temperature", 0.6, True),
        ("temperature", 0, True),
        ("temperature", -0.1, False),
        ("temperature", 2.1, False),
        ("temperature", 10**400, False),
        ("temperature", float("inf"), False),
        ("top_p", 1.0, True),
        ("top_p", 0, False),
        ("top_p", 1.1, False),
        ("top_k", -1, True),
        ("top_k", 50, True),
        ("top_k", 50.0, False),
        ("top_k", -2, False),
        ("min_p", 0.0, True),
        ("repetition_penalty", 0, False),
        ("temperature", "warm", False),
        ("temperature", None, True),
    ],
)
def test_sampling_that_requests_take_over(tmp_path: Path, field: str, value: Any, fine: bool) -> None:
    folder = write_model(tmp_path, {"generation_config.json": {"eos_token_id": 502, field: value}})
    assert found(judged(folder), "FI077") == ([] if fine else [("warning", "FI077")])
    assert found(judged(folder, options={"generation-config": "vllm"}), "FI077") == []


@pytest.mark.parametrize("text", ["", '{"eos_token_id": ', "not json"])
def test_a_generation_config_that_is_no_json_does_not_stop_the_start(tmp_path: Path, text: str) -> None:
    verdict = judged(write_model(tmp_path, {"generation_config.json": text}))
    assert verdict.starts is True and verdict.verdict == "warn"


def test_a_generation_config_that_is_a_list_does(tmp_path: Path) -> None:
    assert judged(write_model(tmp_path, {"generation_config.json": "[1]"})).starts is False


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_tokenizer_companions_that_are_no_json_stop_it(tmp_path: Path, name: str) -> None:
    assert judged(write_model(tmp_path, {name: '{"a": '})).starts is False


# Processors.
VISION: dict[str, Any] = {
    "model_type": "llava",
    "architectures": ["LlavaForConditionalGeneration"],
    "text_config": LLAMA,
    "vision_config": {"model_type": "clip_vision_model", "hidden_size": 32, "num_hidden_layers": 1},
    "image_token_index": 511,
}


@pytest.mark.parametrize(
    ("files", "missing"),
    [
        ({}, True),
        ({"preprocessor_config.json": {}}, False),
        ({"processor_config.json": {"image_processor": {}}}, False),
        ({"tokenizer.json": None, "tokenizer_config.json": None, "chat_template.jinja": None}, False),
    ],
)
def test_a_model_that_sees_needs_a_processor(tmp_path: Path, files: dict[str, Any], missing: bool) -> None:
    folder = write_model(tmp_path, files, **VISION)
    verdict = judged(folder)
    assert found(verdict, "FI075") == ([("error", "FI075")] if missing else [])
    assert found(judged(folder, options={"language-model-only": True}), "FI075") == []


def test_a_model_of_text_needs_none(tmp_path: Path) -> None:
    assert found(judged(write_model(tmp_path)), "FI075") == []


# Remote code.
OWN = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}


def test_files_of_auto_map_that_are_missing(tmp_path: Path) -> None:
    folder = write_model(tmp_path, {"modeling_own.py": "x = 1"}, auto_map=OWN)
    assert found(judged(folder), "FI076") == []
    verdict = judged(folder, trust_remote_code=True)
    finding = one(verdict, "FI076")
    assert (finding.severity, finding.where, verdict.starts) == ("error", "configuration_own.py", False)


def test_a_model_class_of_its_own_is_needed_only_where_the_engine_has_none(tmp_path: Path) -> None:
    folder = write_model(tmp_path, {"configuration_own.py": "x = 1"}, auto_map=OWN)
    assert one(judged(folder, trust_remote_code=True), "FI076").severity == "warning"


def test_code_of_another_repository_is_fetched_from_there(tmp_path: Path) -> None:
    folder = write_model(tmp_path, auto_map={"AutoConfig": "org/name--configuration_own.OwnConfig"})
    assert found(judged(folder, trust_remote_code=True), "FI076") == []


def test_a_tokenizers_slow_and_fast_class(tmp_path: Path) -> None:
    config = {"eos_token": "<|im_end|>", "auto_map": {"AutoTokenizer": ["tokenization_own.Slow", None]}}
    folder = write_model(tmp_path, {"tokenizer_config.json": config})
    assert one(judged(folder, trust_remote_code=True), "FI076").where == "tokenization_own.py"


@pytest.mark.parametrize("auto_map", [[], "x", {"AutoConfig": 1}, {"AutoConfig": "nodot"}, {"AutoConfig": None}])
def test_an_odd_auto_map_is_nobodys_crash(tmp_path: Path, auto_map: Any) -> None:
    verdict = judged(write_model(tmp_path, auto_map=auto_map), trust_remote_code=True)
    assert found(verdict, "FI076") == [] and not verdict.unknowns


ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    1e400,
    "x",
    "",
    [],
    {},
    [None],
    [[]],
    {"a": 1},
    {"content": 3},
    "\x00",
    ["<|im_end|>"],
]


@pytest.mark.parametrize("value", ODD, ids=[repr(value)[:20] for value in ODD])
def test_odd_values_everywhere_are_findings(tmp_path: Path, value: Any) -> None:
    """Every field that these rules read, with a value that it should not have."""
    fields = ("tokenizer_class", "bos_token", "eos_token", "chat_template", "added_tokens_decoder", "auto_map")
    files = {
        "tokenizer_config.json": dict.fromkeys(fields, value),
        "generation_config.json": dict.fromkeys(("eos_token_id", "pad_token_id", "temperature", "top_k"), value),
        "special_tokens_map.json": {"eos_token": value, "unk_token": value},
        "added_tokens.json": {"<x>": value},
        "tokenizer.json": {**tokenizer_json(), "added_tokens": value, "model": {"vocab": value}},
        "chat_template.json": {"chat_template": value},
        "chat_template.jinja": None,
    }
    verdict = judged(write_model(tmp_path, files, eos_token_id=value, image_token_id=value, auto_map=value))
    assert [unknown.what for unknown in verdict.unknowns if unknown.what.startswith("rule")] == []


# Healthy ones.
@pytest.mark.parametrize("name", ["deepseek-v3", "llama-3.1-405b", "gpt-oss-120b", "qwen2.5-72b-awq"])
def test_skeletons_have_no_noise(skeleton: Any, name: str) -> None:
    codes = ("FI070", "FI071", "FI072", "FI073", "FI074", "FI075", "FI076", "FI077", "FI080", "FI081", "FI083")
    assert found(judged(Path(skeleton(name))), *codes) == []


def test_the_demo_has_no_noise(tmp_path: Path) -> None:
    from mlload.demo.checkpoint import write_demo

    write_demo(tmp_path / "demo")
    assert loud(judged(tmp_path / "demo")) == []


def test_case_97_an_adapter_alone_is_named_and_not_judged_as_a_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 8, "base_model_name_or_path": "org/base"}))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"\x02\x00\x00\x00\x00\x00\x00\x00{}")
    problems = Checkpoint.open(str(tmp_path)).problems
    assert [p.code for p in problems if p.severity == "error"] == ["FI063"]
    assert "org/base" in problems[-1].message and "rank 8" in problems[-1].message
