"""Whether a model speaks, judged by what an engine answered: the same for every engine, without torch.

A model whose weights are in the wrong place still answers quickly and in the right dtype. What gives it away is that
it predicts ordinary text no better than chance: a text model takes 2 to 4 nats for a token of the passage below,
one that knows nothing ln(vocabulary), and one with a single layer's weights shuffled lies in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

PASSAGE = (
    "The sun rises in the east and sets in the west. Water boils at one hundred degrees. There are seven days in a "
    "week and twelve months in a year. The capital of France is Paris, and the capital of Italy is Rome. Children go "
    "to school in the morning and come home in the afternoon. When it rains, people carry umbrellas so that they do "
    "not get wet. A dog is an animal that many people keep as a pet. The teacher wrote the answer on the board."
)
PROMPT = "The capital of France is"
# Prompts that `--record` keeps the answers to.
TEXTS = (PASSAGE, "def add(a, b):\n    return a + b\n", "Once upon a time there was a king who had three sons.")
# Nats a token, as a share of ln(vocabulary). A 135M model stands at 0.20, with one shuffled layer of thirty above 0.41.
SURPRISE = 0.32
CONTINUATION = 16
ALIKE = ("every token is as likely as every other", "the logits are the same at every position")


class Spoken(NamedTuple):
    """ok: it speaks; None where there is no tokenizer to ask with and nothing else is wrong
    reasons: why not
    loss: nats a token on the passage, None without a tokenizer
    sample: prompt and greedy continuation, None without a tokenizer
    """

    ok: bool | None
    reasons: tuple[str, ...]
    loss: float | None
    sample: str | None


def judged(
    faults: Sequence[str], loss: float, vocab: int, said: Sequence[int], pad: int | None, eos: int | None
) -> tuple[str, ...]:
    """Why a model with a tokenizer does not speak, () where it does.

    faults: what is wrong with its logits whatever they say; loss: nats a token on the passage
    said:   ids of a greedy continuation
    """
    found = list(faults)
    limit = SURPRISE * math.log(vocab)
    if not found and not loss <= limit:
        found.append(
            f"plain English costs it {loss:.2f} nats a token, where {limit:.2f} is the most of a model that reads it "
            f"({math.log(vocab):.2f} is chance)"
        )
    if len(set(said)) == 1:
        found.append(f"it says nothing but token {said[0]}")
    elif pad is not None and pad != eos and list(said).count(pad) > len(said) // 2:
        found.append("it says the padding token")
    return tuple(found)


def faults_of(tokens: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]], vocab: int) -> tuple[str, ...]:
    """What is wrong with the most likely tokens [positions, some] of an engine that tells no logits."""
    bad = sum(not math.isfinite(value) for row in logprobs for value in row)
    if bad:
        return (f"{bad:,} of {sum(map(len, logprobs)):,} log-probabilities are NaN or infinite",)
    if all(row and math.isclose(row[0], -math.log(vocab), abs_tol=1e-4) for row in logprobs):
        return ALIKE[:1]
    if len(logprobs) > 1 and len({(tuple(ids), tuple(row)) for ids, row in zip(tokens, logprobs, strict=True)}) == 1:
        return ALIKE[1:]
    return ()
