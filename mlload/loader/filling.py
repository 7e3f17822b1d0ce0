"""Each parameter is filled exactly once, or the load fails with names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from mlload.loader.destination import Destination
from mlload.plan.fold import fold_names
from mlload.plan.segments import Box

SHOWN = 8


class Filling:
    """Counts what has been put where. Pieces of a tensor are disjoint boxes of it."""

    def __init__(self, destinations: Mapping[str, Destination]) -> None:
        self.destinations = destinations
        self.filled: dict[str, int] = {}
        self.begun: dict[str, set[tuple[int, ...]]] = {}
        self.unexpected: set[str] = set()
        self.twice: set[str] = set()

    def piece(self, name: str, box: Box) -> Destination | None:
        """Account for one piece; None where nothing expects it or it came before."""
        destination = self.destinations.get(name)
        if destination is None:
            self.unexpected.add(name)
            return None
        first = tuple(start for start, _ in box)
        seen = self.begun.setdefault(name, set())
        if first in seen:
            self.twice.add(name)
            return None
        seen.add(first)
        self.filled[name] = self.filled.get(name, 0) + prod(stop - start for start, stop in box)
        return destination

    def problems(self) -> list[str]:
        """One sentence for each way in which the load is not whole."""
        missing = [name for name in self.destinations if name not in self.filled]
        wanted = {name: destination.numel for name, destination in self.destinations.items()}
        partly = [name for name, count in self.filled.items() if count < wanted[name]]
        twice = sorted(self.twice | {name for name, count in self.filled.items() if count > wanted[name]})
        found = []
        for names, what in (
            (missing, "missing"),
            (partly, "filled only in part"),
            (sorted(self.unexpected), "not expected by the model"),
            (twice, "filled twice"),
        ):
            if names:
                found.append(f"{len(names)} tensor{'s' if len(names) > 1 else ''} {what}: {shown(names)}")
        return found


def shown(names: Iterable[str]) -> str:
    """Names with their layer numbers folded, the first few of them."""
    folded = [where for where, _ in fold_names(names)]
    return ", ".join(folded[:SHOWN]) + (f" and {len(folded) - SHOWN} more" if len(folded) > SHOWN else "")
