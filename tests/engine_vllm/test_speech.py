"""What an engine said, judged as the native engine's answers are, and compared with a record."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mlload.checkpoint.finding import MlloadError
from mlload.engine.vllm.speech import as_record, divergence, spoken

VOCAB = 1000


def event(**more: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "losses": [2.0, 1.0], "tops": [[-0.5, -2.0], [-0.1, -4.0], [-1.0, -1.5]], "tokens": [[5, 6], [7, 8], [5, 9]],
        "vocab": VOCAB, "tokenizer": True, "said": [5, 7, 9], "sample": "The capital of France is Paris",
        "pad": 0, "eos": 2,
    }  # fmt: skip
    return {**fields, **more}


def test_one_that_speaks() -> None:
    found = spoken(event())
    assert found.ok and found.loss == 1.5 and found.reasons == () and found.sample == "The capital of France is Paris"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        # 0.32 ln(1000) is 2.21.
        ({"losses": [2.3, 2.3]}, "plain English costs it 2.30 nats a token, where 2.21 is the most"),
        ({"losses": [math.nan]}, "plain English costs it nan"),
        ({"tops": [[math.nan, -1.0]] * 3}, "3 of 6 log-probabilities are NaN or infinite"),
        ({"tops": [[-math.log(VOCAB)] * 2] * 3}, "every token is as likely as every other"),
        ({"tops": [[-1.0, -2.0]] * 3, "tokens": [[5, 6]] * 3}, "the logits are the same at every position"),
        ({"said": [5, 5, 5]}, "it says nothing but token 5"),
        ({"said": [0, 0, 7]}, "it says the padding token"),
    ],
)
def test_one_that_does_not(more: dict[str, Any], said: str) -> None:
    found = spoken(event(**more))
    assert found.ok is False
    assert any(reason.startswith(said) for reason in found.reasons), found.reasons


def test_without_a_tokenizer_only_faults_are_known() -> None:
    assert spoken(event(tokenizer=False)).ok is None
    assert spoken(event(tokenizer=False, tops=[[math.inf, -1.0]] * 3)).ok is False


def prompts(*rows: dict[int, float]) -> dict[str, Any]:
    """Positions with the probabilities of their likeliest tokens."""
    ranked = [sorted(row.items(), key=lambda item: -item[1]) for row in rows]
    return {
        "vocab": VOCAB,
        "prompts": [
            {
                "ids": list(range(len(rows))),
                "tokens": [[token for token, _ in row] for row in ranked],
                "logprobs": [[math.log(p) for _, p in row] for row in ranked],
                "actual": [],
            }
        ],
    }


def test_the_same_answers_do_not_differ() -> None:
    told = prompts({1: 0.7, 2: 0.2}, {3: 0.5, 4: 0.4})
    found = divergence(as_record(told), told)
    assert found["mean"] == pytest.approx(0, abs=1e-12) and found["agree"] == 1 and found["positions"] == 2


def test_a_divergence_by_hand() -> None:
    kept, now = prompts({1: 0.5, 2: 0.25}), prompts({2: 0.5, 1: 0.25})
    found = divergence(as_record(kept), now)
    assert found["mean"] == pytest.approx(0.5 * math.log(2) + 0.25 * math.log(0.5) + 0.25 * math.log(1))
    assert found["agree"] == 0


def test_tokens_that_are_not_told_count_as_rest() -> None:
    """Token 9 has 0.25 in the record; the engine tells of 1 alone, so both sides are {1, anything else}."""
    kept, now = prompts({1: 0.5, 9: 0.25}), prompts({1: 0.8})
    found = divergence(as_record(kept), now)
    assert found["mean"] == pytest.approx(0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.2))


def test_a_record_of_another_vocabulary() -> None:
    told = prompts({1: 0.7})
    with pytest.raises(MlloadError, match="a vocabulary of 999 tokens, this model has 1000"):
        divergence({**as_record(told), "vocab": 999}, told)


def test_a_record_is_what_expect_reads() -> None:
    kept = as_record(prompts({1: 0.7}))
    assert kept["schema_version"] == 1 and set(kept["prompts"][0]) == {"ids", "tokens", "logprobs"}
