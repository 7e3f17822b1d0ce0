"""What a vLLM answered, judged and compared as the native engine's answers are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mlload.checkpoint.finding import MlloadError
from mlload.engine.judge import Spoken, faults_of, judged
from mlload.engine.record_file import SCHEMA

TINY = 1e-12


def spoken(event: dict[str, Any]) -> Spoken:
    """The event "speaks", judged."""
    vocab = int(event["vocab"])
    faults = faults_of(event["tokens"], event["tops"], vocab)
    if not event["tokenizer"]:
        return Spoken(False if faults else None, faults, None, None)
    losses = event["losses"]
    loss = sum(losses) / len(losses) if losses else math.nan
    reasons = judged(faults, loss, vocab, event["said"], event["pad"], event["eos"])
    return Spoken(not reasons, reasons, loss, event["sample"])


def as_record(event: dict[str, Any]) -> dict[str, Any]:
    """The event "positions" as the file that `--record` writes."""
    kept = [{key: prompt[key] for key in ("ids", "tokens", "logprobs")} for prompt in event["prompts"]]
    return {"schema_version": SCHEMA, "vocab": event["vocab"], "prompts": kept}


def divergence(recorded: dict[str, Any], event: dict[str, Any]) -> dict[str, Any]:
    """KL(recorded || measured) in nats over positions: mean, highest, agree (the same first token), positions.

    Both tell their most likely tokens only. Recorded tokens that the engine does not tell are put together with the
    rest, on both sides: a coarser pair of distributions never diverges more than the full one.
    """
    if recorded.get("vocab") != event["vocab"]:
        raise MlloadError(
            f"the record is of a vocabulary of {recorded.get('vocab')} tokens, this model has {event['vocab']}"
        )
    each: list[float] = []
    same = 0
    for kept, now in zip(recorded["prompts"], event["prompts"], strict=True):
        rows = zip(kept["tokens"], kept["logprobs"], now["tokens"], now["logprobs"], strict=True)
        for tokens, logprobs, other_tokens, other_logprobs in rows:
            each.append(_kl(tokens, logprobs, dict(zip(other_tokens, other_logprobs, strict=True))))
            same += tokens[0] == other_tokens[0]
    finite = all(map(math.isfinite, each))
    return {
        "mean": sum(each) / len(each) if finite else math.inf,
        "highest": max(each) if finite else math.inf,
        "agree": same / len(each),
        "positions": len(each),
    }


def _kl(tokens: Sequence[int], logprobs: Sequence[float], now: dict[int, float]) -> float:
    both = [(math.exp(logprob), now[token]) for token, logprob in zip(tokens, logprobs, strict=True) if token in now]
    rest = max(1 - sum(p for p, _ in both), TINY), max(1 - sum(math.exp(q) for _, q in both), TINY)
    total = sum(p * (math.log(p) - q) for p, q in both if p > 0) + rest[0] * (math.log(rest[0]) - math.log(rest[1]))
    return max(total, 0.0) if math.isfinite(total) else math.inf
