"""What was typed is kept or refused; what was not is shortened to the positions that there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.engine.lengths import fitted
from mlload.engine.settings import Settings
from mlload.plan.model import Model, read_model
from tests.plan.tiny_models import LLAMA
from tests.writer.build import write_checkpoint


@pytest.fixture
def model(tmp_path: Path) -> Model:
    write_checkpoint(tmp_path / "short", {**LLAMA, "max_position_embeddings": 256})
    return read_model(Checkpoint.open(str(tmp_path / "short")))


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        ({"prompt_len": 128, "decode": 128, "typed": ("prompt_len", "decode")}, (128, 128)),
        ({}, (128, 128)),
        ({"decode": 8, "typed": ("decode",)}, (248, 8)),
        ({"decode": 255, "typed": ("decode",)}, (1, 255)),
    ],
)
def test_what_fits(asked: dict[str, object], left: tuple[int, int], model: Model) -> None:
    settings, said = fitted(model, Settings("x", **asked))  # type: ignore[arg-type]
    assert (settings.prompt_len, settings.decode) == left
    assert bool(said) == ("prompt_len" not in asked)
    assert settings.typed == asked.get("typed", ())


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ({"prompt_len": 129, "typed": ("prompt_len",)}, "--prompt-len 128"),
        ({"prompt_len": 9000, "decode": 6, "typed": ("prompt_len", "decode")}, "--prompt-len 250"),
        ({"decode": 256, "typed": ("decode",)}, "--prompt-len 128 --decode 128"),
    ],
)
def test_what_was_typed_and_is_too_long(asked: dict[str, object], hint: str, model: Model) -> None:
    with pytest.raises(MlloadError, match=r"the model has 256 positions \(max_position_embeddings\)") as refused:
        fitted(model, Settings("x", **asked))  # type: ignore[arg-type]
    assert refused.value.hint == hint and refused.value.exit_code == 2
