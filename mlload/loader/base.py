"""What a loader is: it yields a rank's own tensors, piece by piece, and `load` puts each where it belongs."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from mlload.checkpoint.finding import MlloadError
from mlload.loader.destination import Destination
from mlload.loader.filling import Filling
from mlload.plan.plan import Plan
from mlload.plan.segments import Box

# Name of a rank's own tensor -> where it goes.
Destinations = Mapping[str, Destination]
# (bytes read so far) -> nothing; called a few times a second from the loading thread.
Tick = Callable[[int], None]


class RankTensor(NamedTuple):
    """A piece of one of the rank's own tensors, already cut.

    name:   of the tensor in the checkpoint
    box:    of the rank's own tensor that the piece is; () for a scalar
    tensor: its values, None where they were read straight into their destination
    nbytes: read for it
    """

    name: str
    box: Box
    tensor: Tensor | None
    nbytes: int = 0


class Loaded(NamedTuple):
    """bytes_read: from files or network, by this rank; read_seconds: first read to last byte placed, of which
    copy_seconds were spent putting pieces into parameters; tensors: filled."""

    bytes_read: int
    read_seconds: float
    copy_seconds: float
    tensors: int


class BaseModelLoader(ABC):
    """One load_format. Subclasses yield; nothing else needs to be known of the model."""

    #: False for loaders that give parameters values of their own ("dummy")
    reads_weights = True

    @abstractmethod
    def tensors(self, plan: Plan, rank: int, destinations: Destinations) -> Iterator[RankTensor]:
        """Every piece of every tensor that the plan gives to the rank, each once, in any order.

        `destinations[name].memory()` is where the whole tensor may be put directly, None where its values must
        pass through the parameter's `weight_loader` (another dtype or device)."""

    def load(self, plan: Plan, rank: int, destinations: Destinations, tick: Tick | None = None) -> Loaded:
        """Fill every destination exactly once. Raises MlloadError with the names of tensors that are missing,
        unexpected or there twice."""
        filling = Filling(destinations)
        started = last = time.perf_counter()
        copying, total = 0.0, 0
        with torch.no_grad():
            for piece in self.tensors(plan, rank, destinations):
                destination = filling.piece(piece.name, piece.box)
                if destination is not None and piece.tensor is not None:
                    before = time.perf_counter()
                    destination.put(piece.box, piece.tensor)
                    copying += time.perf_counter() - before
                total += piece.nbytes
                if tick is not None and (now := time.perf_counter()) - last > 0.2:
                    last = now
                    tick(total)
        if problems := filling.problems():
            raise MlloadError(f"rank {rank}: " + "; ".join(problems), exit_code=1)
        return Loaded(total, time.perf_counter() - started, copying, len(filling.filled))
