"""Whether a loaded model speaks: finite, not constant, and not surprised by plain English.

A model whose weights are in the wrong place still answers quickly and in the right dtype. What gives it away is that
it predicts ordinary text no better than chance: a text model takes 2 to 4 nats for a token of the passage below,
one that knows nothing ln(vocabulary), and one with a single layer's weights shuffled lies in between.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mlload.engine.native import NativeEngine

PASSAGE = (
    "The sun rises in the east and sets in the west. Water boils at one hundred degrees. There are seven days in a "
    "week and twelve months in a year. The capital of France is Paris, and the capital of Italy is Rome. Children go "
    "to school in the morning and come home in the afternoon. When it rains, people carry umbrellas so that they do "
    "not get wet. A dog is an animal that many people keep as a pet. The teacher wrote the answer on the board."
)
PROMPT = "The capital of France is"
# Nats a token, as a share of ln(vocabulary). A 135M model stands at 0.20, with one shuffled layer of thirty above 0.41.
SURPRISE = 0.32
CONTINUATION = 16


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


def speak(engine: NativeEngine, tokenizer: Any | None) -> Spoken:
    """Ask a loaded engine. Every rank must call it."""
    vocab = int(engine.plan.model.config.vocab)
    if tokenizer is None:
        ids = torch.arange(32).remainder(max(vocab, 1))[None]
        reasons = faults(engine.logits(ids)[0])
        return Spoken(False if reasons else None, reasons, None, None)
    ids = torch.tensor([tokenizer.encode(PASSAGE)])
    logits = engine.logits(ids)[0].float()
    found = list(faults(logits))
    loss = float(torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:].to(logits.device)))
    limit = SURPRISE * math.log(vocab)
    if not found and not loss <= limit:
        found.append(
            f"plain English costs it {loss:.2f} nats a token, where {limit:.2f} is the most of a model that reads it "
            f"({math.log(vocab):.2f} is chance)"
        )
    prompt = torch.tensor([tokenizer.encode(PROMPT)])
    said = engine.greedy(prompt, CONTINUATION)[0].tolist()
    pad = getattr(tokenizer, "pad_token_id", None)
    eos = getattr(tokenizer, "eos_token_id", None)
    if len(set(said)) == 1:
        found.append(f"it says nothing but token {said[0]}")
    elif pad is not None and pad != eos and said.count(pad) > len(said) // 2:
        found.append("it says the padding token")
    return Spoken(not found, tuple(found), loss, PROMPT + tokenizer.decode(said))


def faults(logits: Tensor) -> tuple[str, ...]:
    """What is wrong with logits [positions, vocab] whatever they say."""
    if not torch.isfinite(logits).all():
        bad = int((~torch.isfinite(logits)).sum())
        return (f"{bad:,} of {logits.numel():,} logits are NaN or infinite",)
    if float(logits.float().std(-1).max()) == 0:
        return ("every token is as likely as every other",)
    if len(logits) > 1 and float((logits - logits[:1]).abs().max()) == 0:
        return ("the logits are the same at every position",)
    return ()


def tokenizer_of(source: str, label: str) -> Any | None:
    """The tokenizer beside the weights, None where there is none that transformers reads."""
    import os

    from transformers import AutoTokenizer

    folder = source if os.path.isdir(source) else os.path.dirname(source) or "."
    arguments: dict[str, Any] = {}
    if source.endswith(".gguf"):
        if not os.path.exists(os.path.join(folder, "tokenizer.json")):
            arguments["gguf_file"] = os.path.basename(source)
    elif not os.path.isdir(source):
        return None
    try:
        return AutoTokenizer.from_pretrained(folder, **arguments)
    except Exception:  # a tokenizer of any kind may be broken in any way; the load test goes on without it
        return None
