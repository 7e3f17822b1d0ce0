"""load_format "sharded_state": per-rank files of vLLM's own names, as `mlload shard --layout vllm` and vLLM's
`save_sharded_state` write them; at the size of the files or at another."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.loader.base import BaseModelLoader, Destinations, RankTensor
from mlload.loader.held import held_reads
from mlload.loader.reader import read_tensors
from mlload.loader.share import share_of
from mlload.plan.plan import Plan
from mlload.writer.read_sharded_state import read_sharded_state


class ShardedStateLoader(BaseModelLoader):
    def tensors(self, plan: Plan, rank: int, destinations: Destinations) -> Iterator[RankTensor]:
        checkpoint = Checkpoint.open(plan.model.checkpoint.source)
        if checkpoint.format != "sharded_state":
            raise MlloadError(
                f"{checkpoint.label} holds no model-rank-N-part-M.safetensors",
                hint="mlload shard SOURCE -o FOLDER --tp N --layout vllm",
            )
        _, holdings = read_sharded_state(checkpoint)
        reads = held_reads(plan, rank, holdings, f"model-rank-{rank}-part-")
        return read_tensors(checkpoint.source, reads, destinations, share_of(plan, rank))
