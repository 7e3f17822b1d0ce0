"""Prefill and decode of growing batches: tokens a second, time to the first token, time between tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from mlload.engine.cache import cache_bytes
from mlload.engine.native import NativeEngine

WARM_UP = 2  # tokens decoded before the clock runs


class Pace(NamedTuple):
    """One batch. Milliseconds; tokens a second over the whole batch; kv_bytes: of the caches' storages."""

    batch: int
    prompt_len: int
    decode: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    first_token_ms: float
    inter_token_ms: dict[str, float]
    kv_bytes: int

    def as_json(self) -> dict[str, Any]:
        return self._asdict()


def pace(engine: NativeEngine, batch: int, prompt_len: int, decode: int) -> Pace:
    """Random prompts of equal length, decoded greedily. Every rank must call it with the same numbers."""
    vocab = int(engine.plan.model.config.vocab)
    ids = torch.randint(0, vocab, (batch, prompt_len), generator=torch.Generator().manual_seed(0))
    cache = engine.cache(prompt_len + decode + 1)
    started = engine.synchronize()
    following = engine.step(ids, cache).argmax(-1, keepdim=True)
    first = engine.synchronize() - started
    steps = []
    for _ in range(decode):
        before = engine.synchronize()
        following = engine.step(following, cache).argmax(-1, keepdim=True)
        steps.append(engine.synchronize() - before)
    timed = steps[WARM_UP:] if len(steps) > 2 * WARM_UP else steps
    total = sum(timed)
    return Pace(
        batch,
        prompt_len,
        decode,
        batch * prompt_len / first if first else 0.0,
        batch * len(timed) / total if total else 0.0,
        first * 1e3,
        {"p50": quantile(timed, 0.5) * 1e3, "p99": quantile(timed, 0.99) * 1e3},
        cache_bytes(cache),
    )


def quantile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)] if ordered else 0.0
