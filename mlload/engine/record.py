"""Log-probabilities of fixed prompts, kept from a trusted model and compared with another.

Each position keeps the TOP most likely tokens; what is left of the probability is one more outcome, so that the
divergence is one between whole distributions (and never more than between those over the vocabulary).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mlload.engine.judge import TEXTS
from mlload.engine.native import NativeEngine
from mlload.engine.record_file import SCHEMA
from mlload.engine.record_file import read_record as read_record

TOP = 20


class Divergence(NamedTuple):
    """KL(recorded || measured) in nats: mean and highest over positions; agree: share with the same first token."""

    mean: float
    highest: float
    agree: float
    positions: int


def prompts(tokenizer: Any | None, vocab: int) -> list[list[int]]:
    """Token ids; without a tokenizer a fixed walk through the vocabulary."""
    if tokenizer is None:
        return [[(7919 * (i + 1) + 104729 * n) % vocab for i in range(32)] for n in range(len(TEXTS))]
    return [list(tokenizer.encode(text)) for text in TEXTS]


def record(engine: NativeEngine, ids: list[list[int]]) -> dict[str, Any]:
    """What a model says at every position of the prompts."""
    found = []
    for prompt in ids:
        logprobs = engine.logits(torch.tensor([prompt]))[0].float().log_softmax(-1)
        top = logprobs.topk(min(TOP, logprobs.shape[-1]), -1)
        found.append({"ids": prompt, "tokens": top.indices.tolist(), "logprobs": top.values.tolist()})
    return {"schema_version": SCHEMA, "vocab": int(engine.plan.model.config.vocab), "prompts": found}


def compare(engine: NativeEngine, recorded: dict[str, Any]) -> Divergence:
    """The recorded distribution against what this engine says of the same ids."""
    divergences: list[Tensor] = []
    same = 0
    for prompt in recorded["prompts"]:
        logprobs = engine.logits(torch.tensor([prompt["ids"]]))[0].float().log_softmax(-1).cpu()
        tokens, kept = torch.tensor(prompt["tokens"]), torch.tensor(prompt["logprobs"], dtype=torch.float64)
        divergences.append(divergence(kept, logprobs.gather(-1, tokens).double()))
        same += int((logprobs.argmax(-1) == tokens[:, 0]).sum())
    each = torch.cat(divergences)
    if not torch.isfinite(each).all():
        return Divergence(math.inf, math.inf, same / len(each), len(each))
    return Divergence(float(each.mean()), float(each.max()), same / len(each), len(each))


def divergence(kept: Tensor, now: Tensor) -> Tensor:
    """KL of log-probabilities [positions, TOP] of the same tokens, the rest of each as one more outcome."""
    rest_kept, rest_now = ((1 - each.exp().sum(-1, keepdim=True)).clamp(min=1e-12) for each in (kept, now))
    p = torch.cat([kept.exp(), rest_kept], -1)
    log_q = torch.cat([now, rest_now.log()], -1)
    return (p * (p.log() - log_q)).sum(-1).clamp(min=0)
