"""hidden_act against the class that vLLM builds (read in the release: `if hidden_act != "silu": raise`)."""

from __future__ import annotations

import pytest

from tests.validators.build import LLAMA, llama, of, verdict


@pytest.mark.parametrize("version", ["0.32", "0.33"])
def test_the_class_is_built_with_one_activation(version: str) -> None:
    found = verdict({**LLAMA, "hidden_act": "gelu"}, llama(), version=version)
    assert found.starts is False
    (finding,) = of(found, "CF014")
    assert finding.numbers == {"hidden_act": "gelu", "only": "silu"}
    assert "model_executor/models/llama.py" in finding.message


@pytest.mark.parametrize("config", [{"hidden_act": "silu"}, {}, {"hidden_act": None}])
def test_nothing_is_said_of_the_usual_one(config: dict[str, str | None]) -> None:
    assert of(verdict({**LLAMA, **config}, llama()), "CF014") == []


def test_classes_that_take_several_are_left_alone() -> None:
    """models/gemma.py builds GELU in two forms and checks neither here."""
    gemma = {**LLAMA, "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "hidden_act": "gelu"}
    assert of(verdict(gemma, llama()), "CF014") == []


def test_other_engines_have_no_such_fact() -> None:
    found = verdict({**LLAMA, "hidden_act": "gelu"}, llama(), engine="transformers", version="")
    assert of(found, "CF014") == []
