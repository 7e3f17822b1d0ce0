"""load_format "tensorizer": `.tensors` files, those of vLLM's names (one for each rank, as `mlload shard --layout
tensorizer` and vLLM write them) at their own size or at another, and those of checkpoint names.

The format is read here, by ranges and no more than a rank's own bytes; the tensorizer package is not needed.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.loader.base import BaseModelLoader, Destinations, RankTensor
from mlload.loader.held import held_reads
from mlload.loader.reader import read_tensors
from mlload.loader.reads import rank_reads
from mlload.loader.share import share_of
from mlload.plan.plan import Plan
from mlload.writer.read_tensorizer import of_vllm, read_rank_files


class TensorizerLoader(BaseModelLoader):
    def tensors(self, plan: Plan, rank: int, destinations: Destinations) -> Iterator[RankTensor]:
        checkpoint = Checkpoint.open(plan.model.checkpoint.source)
        if checkpoint.format != "tensorizer":
            raise MlloadError(
                f"{checkpoint.label} holds no .tensors files",
                hint="mlload shard SOURCE -o FOLDER --tp N --layout tensorizer",
            )
        if of_vllm(checkpoint):
            _, holdings = read_rank_files(checkpoint)
            reads = held_reads(plan, rank, holdings, f"model-rank-{rank:03d}.")
        else:
            reads = rank_reads(plan, rank)
        return read_tensors(checkpoint.source, reads, destinations, share_of(plan, rank))
