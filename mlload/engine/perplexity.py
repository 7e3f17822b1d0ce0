"""Perplexity of a text: evenly spaced windows of equal length, each read from an empty cache."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mlload.checkpoint.finding import MlloadError
from mlload.engine.native import NativeEngine

TOGETHER = 4  # windows in one forward
MOST = 64 << 20  # bytes read of the text


class Perplexity(NamedTuple):
    """value: exp of `nats`, the mean cross-entropy of a token; tokens: that were predicted, one less than each
    window holds"""

    value: float
    nats: float
    tokens: int
    windows: int
    length: int


def windows_of(tokenizer: Any | None, path: str, count: int, length: int) -> Tensor:
    """int64 [count, length]: token ids of a text file, the first window at its beginning, the last at its end.

    Windows overlap where the text is shorter than all of them. Raises MlloadError without a tokenizer, and where the
    text cannot be read or does not fill one window."""
    if tokenizer is None:
        raise MlloadError("--perplexity needs a tokenizer beside the weights")
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(MOST)
    except OSError as error:
        raise MlloadError(f"{path} cannot be read: {error.strerror}", exit_code=3) from error
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    if len(ids) < length:
        raise MlloadError(f"{path} has {len(ids):,} tokens, and one window takes {length}")
    step = (len(ids) - length) // max(count - 1, 1)
    return torch.tensor([ids[number * step : number * step + length] for number in range(count)])


def perplexity(engine: NativeEngine, ids: Tensor) -> Perplexity:
    """ids [windows, length]. Every rank must call it."""
    count, length = ids.shape
    total = 0.0
    for start in range(0, count, TOGETHER):
        batch = ids[start : start + TOGETHER]
        logits = engine.logits(batch)[:, :-1].float().flatten(0, 1)
        following = batch[:, 1:].flatten().to(logits.device)
        total += float(torch.nn.functional.cross_entropy(logits, following, reduction="sum"))
    tokens = count * (length - 1)
    nats = total / tokens
    return Perplexity(math.exp(nats) if nats < 700 else math.inf, nats, tokens, count, length)
