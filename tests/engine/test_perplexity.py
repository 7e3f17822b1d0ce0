"""Perplexity of a text that every machine has, against transformers and between sizes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from mlload.checkpoint.finding import MlloadError
from mlload.engine.calibrate_text import builtin_text
from mlload.engine.launch import run_all
from mlload.engine.native import NativeEngine
from mlload.engine.perplexity import perplexity, windows_of
from mlload.engine.settings import Settings
from mlload.engine.speak import tokenizer_of
from tests.engine.tiny import planned, save
from tests.real_models import RealModel

LLAMA = {
    "model_type": "llama", "vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


def words(text: str, **_: Any) -> dict[str, list[int]]:
    """A tokenizer: each word is its number."""
    return {"input_ids": [int(word) for word in text.split()]}


def test_windows_go_from_the_beginning_to_the_end(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text(" ".join(map(str, range(100))))
    assert windows_of(words, str(text), 4, 10)[:, 0].tolist() == [0, 30, 60, 90]
    assert windows_of(words, str(text), 4, 10)[-1].tolist() == list(range(90, 100))
    assert windows_of(words, str(text), 1, 100).tolist() == [list(range(100))]
    assert windows_of(words, str(text), 3, 80)[:, 0].tolist() == [0, 10, 20]


def test_a_text_that_cannot_be_measured_is_a_sentence(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("1 2 3")
    with pytest.raises(MlloadError, match="3 tokens, and one window takes 4"):
        windows_of(words, str(text), 1, 4)
    with pytest.raises(MlloadError, match="cannot be read"):
        windows_of(words, str(tmp_path / "none"), 1, 4)
    with pytest.raises(MlloadError, match="tokenizer"):
        windows_of(None, str(text), 1, 2)


@pytest.mark.slow
def test_a_random_model_is_as_surprised_as_transformers_is(tmp_path: Path) -> None:
    made = save(tmp_path, LLAMA)
    ids = torch.randint(0, 50, (5, 12), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        logits = made(input_ids=ids).logits.double()
    want = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    found = perplexity(NativeEngine(planned(tmp_path)).start(), ids)
    assert (found.tokens, found.windows, found.length) == (55, 5, 12)
    assert abs(found.nats - float(want)) < 1e-5
    assert math.isclose(found.value, math.exp(found.nats))


@pytest.mark.slow
def test_of_the_real_model_to_three_digits_on_one_rank_and_on_three(real_model: RealModel, tmp_path: Path) -> None:
    import transformers

    folder = real_model("smollm2")
    text = tmp_path / "text.txt"
    text.write_text(builtin_text())
    ids = windows_of(tokenizer_of(str(folder), ""), str(text), 6, 128)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits = model.eval()(input_ids=ids).logits[:, :-1]
    want = f"{math.exp(F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())):.3f}"
    for tp in (1, 3):
        asked = Settings(
            str(folder), tp=tp, dtype="float32", batches=(1,), prompt_len=4, decode=1, perplexity=str(text), windows=6,
            window=128,
        )  # fmt: skip
        results = run_all(asked)
        assert results is not None
        assert [f"{one['perplexity']['value']:.3f}" for one in results] == [want] * tp
