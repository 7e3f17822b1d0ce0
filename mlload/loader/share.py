"""Ranks of one machine read the same files at the same time, into one page cache: who reads what, and when.

A rank's slices of column-parallel weights lie apart in the file, the other ranks' slices between them, and all ranks
need the rows of row-parallel ones. Left alone they would all jump through the files and copy the same pages. So each
reads every n-th run with all that lies in it, for everybody, and finds the others' in the cache a little later.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from mlload.loader.reads import Read
from mlload.plan.plan import Plan


class Share(NamedTuple):
    """rank: one of `ranks`, those that fill one page cache together with the same files."""

    rank: int = 0
    ranks: int = 1

    def reads(self, turn: int) -> bool:
        """Whether this rank reads run number `turn` for all."""
        return turn % self.ranks == self.rank

    def in_turns(self, runs: int, ahead: int) -> Iterator[int]:
        """Every run's number: `ahead` of those that this rank reads come before those that it only finds."""
        if self.ranks == 1:
            yield from range(runs)
            return
        own = iter(range(self.rank, runs, self.ranks))
        yield from islice(own, ahead)
        for first in range(0, runs, self.ranks):
            yield from islice(own, 1)
            yield from (run for run in range(first, min(first + self.ranks, runs)) if not self.reads(run))


ALONE = Share()


def share_of(plan: Plan, rank: int) -> Share:
    """All ranks of a stage; a rank alone where some of them run on other machines (torchrun's LOCAL_WORLD_SIZE),
    because what those need is not needed here."""
    mesh = plan.mesh
    here = os.environ.get("LOCAL_WORLD_SIZE")
    if here is not None and here != str(len(mesh.ranks)):
        return ALONE
    return Share(mesh.tp_rank(rank), mesh.tp)


def between(run: Sequence[Read], ranks: int) -> tuple[int, int] | None:
    """First byte and length of a run of one file with what lies between its reads, where other ranks need that: None
    where nothing does, or more than they can."""
    start, stop = run[0].first, max(read.first + read.span for read in run)
    own = sum(read.nbytes for read in run)
    return (start, stop - start) if own < stop - start <= 2 * ranks * own else None
