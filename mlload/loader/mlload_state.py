"""load_format "mlload_state": what `mlload shard --layout mlload` wrote, at the same size or at another.

A rank of the size that the folder was cut for reads its own folder and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.loader.base import BaseModelLoader, Destinations, RankTensor
from mlload.loader.held import held_reads
from mlload.loader.reader import read_tensors
from mlload.loader.share import share_of
from mlload.plan.plan import Plan
from mlload.writer.read_state import is_state, read_state


class MlloadStateLoader(BaseModelLoader):
    def tensors(self, plan: Plan, rank: int, destinations: Destinations) -> Iterator[RankTensor]:
        checkpoint = Checkpoint.open(plan.model.checkpoint.source)
        if not is_state(checkpoint):
            raise MlloadError(
                f"{checkpoint.label} was not written by mlload shard", hint="mlload shard SOURCE -o FOLDER --tp N"
            )
        _, holdings = read_state(checkpoint)
        reads = held_reads(plan, rank, holdings, f"rank-{rank:05d}/")
        return read_tensors(checkpoint.source, reads, destinations, share_of(plan, rank))
