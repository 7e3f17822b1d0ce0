"""Types of config fields, as transformers 5 checks them: each row was asked of its AutoConfig."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlload.validators.field_types import FIELDS, declaring
from tests.validators.build import LLAMA, llama, of, verdict

REFUSED: list[tuple[str, Any]] = [
    ("rms_norm_eps", "1e-6"),
    ("rms_norm_eps", 1),
    ("initializer_range", "0.02"),
    ("attention_bias", "false"),
    ("attention_bias", 0),
    ("mlp_bias", None),
    ("use_cache", 1),
    ("hidden_act", None),
    ("max_position_embeddings", 8192.0),
    ("max_position_embeddings", None),
]
TAKEN: list[tuple[str, Any]] = [
    ("rms_norm_eps", 1e-6),
    ("attention_dropout", 0),
    ("num_key_value_heads", None),
    ("eos_token_id", [2, 3]),
    ("pad_token_id", -1),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_another_type_stops_the_start(name: str, value: Any) -> None:
    found = verdict({**LLAMA, name: value}, {})
    assert found.starts is False
    # A switch that is none is told as such already.
    said = [*of(found, "CF001"), *of(found, "CF015")]
    assert [finding.where for finding in said] == [f"config.json: {name}"]


@pytest.mark.parametrize(("name", "value"), TAKEN)
def test_what_is_taken_passes(name: str, value: Any) -> None:
    assert of(verdict({**LLAMA, name: value}, llama()), "CF015") == []


def test_a_class_that_has_no_such_field_does_not_check_it() -> None:
    assert "mixtral" not in declaring("mlp_bias") and "llama" in declaring("mlp_bias")


@pytest.mark.slow
@pytest.mark.transformers
@pytest.mark.parametrize(("name", "value"), REFUSED + TAKEN)
def test_transformers_says_the_same(tmp_path: Path, name: str, value: Any) -> None:
    transformers = pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, name: value}))
    refused = (name, value) in REFUSED
    try:
        transformers.AutoConfig.from_pretrained(tmp_path)
    except Exception as error:
        assert refused, error
    else:
        assert not refused


def test_the_data_has_every_field() -> None:
    assert all(declaring(name) for name in FIELDS)
