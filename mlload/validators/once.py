"""Facts of a checkpoint that several rules ask for, at several sizes: read once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from mlload.checkpoint.checkpoint import Checkpoint

T = TypeVar("T")
KEPT = 4  # several sources in one call are judged one after another


def per_checkpoint(read: Callable[[Checkpoint], T]) -> Callable[[Checkpoint], T]:
    """Remember what `read` found in the last few checkpoints. By identity: a checkpoint cannot be hashed."""
    kept: deque[tuple[Checkpoint, T]] = deque(maxlen=KEPT)

    @wraps(read)
    def remembered(checkpoint: Checkpoint) -> T:
        for known, value in kept:
            if known is checkpoint:
                return value
        value = read(checkpoint)
        kept.append((checkpoint, value))
        return value

    return remembered
