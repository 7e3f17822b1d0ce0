"""Ranks as threads of one process: what they send one another passes through memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Meeting:
    """Where `size` threads put a tensor each and take all of them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.held: list[Tensor | None] = [None] * size
        self.barrier = threading.Barrier(size, timeout=300)

    def exchange(self, rank: int, mine: Tensor) -> list[Tensor]:
        self.held[rank] = mine.clone()
        self.barrier.wait()
        found = [tensor for tensor in self.held if tensor is not None]
        self.barrier.wait()
        return found


class ThreadGroup:
    """What `Group` offers, over a Meeting."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank, self.size, self.meeting = rank, meeting.size, meeting

    def sum(self, x: Tensor) -> Tensor:
        return torch.stack(self.meeting.exchange(self.rank, x)).sum(0)

    def join(self, x: Tensor) -> Tensor:
        return torch.cat(self.meeting.exchange(self.rank, x), -1)


def on_ranks(size: int, work: Callable[[int, ThreadGroup], T]) -> list[T]:
    """What `work` returns on each rank; the first exception where one fails."""
    meeting = Meeting(size)
    found: list[T | None] = [None] * size
    failures: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            found[rank] = work(rank, ThreadGroup(rank, meeting))
        except BaseException as error:
            failures.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    real = [error for error in failures if not isinstance(error, threading.BrokenBarrierError)]
    if failures:
        raise (real or failures)[0]
    return [one for one in found if one is not None]
