"""Folders that were cut per rank, in whichever layout, as the checkpoint that was cut."""

from __future__ import annotations

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.writer.holdings import Holdings
from mlload.writer.read_state import is_state, read_state


def read_ranks(checkpoint: Checkpoint) -> tuple[Checkpoint, Holdings] | None:
    """Whole tensors and where their bytes lie, None for a checkpoint that was not cut. Raises MlloadError where the
    files of the ranks are not what their manifest, or their config, says."""
    if is_state(checkpoint):
        return read_state(checkpoint)
    if checkpoint.format == "sharded_state":
        from mlload.writer.read_sharded_state import read_sharded_state

        return read_sharded_state(checkpoint)
    if checkpoint.format == "tensorizer":
        from mlload.writer.read_tensorizer import of_vllm, read_rank_files

        return read_rank_files(checkpoint) if of_vllm(checkpoint) else None
    return None


def whole(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint that was cut, where it can be told; any other as it is."""
    if checkpoint.format not in ("sharded_state", "tensorizer") and not is_state(checkpoint):
        return checkpoint
    try:
        found = read_ranks(checkpoint)
    except MlloadError:
        return checkpoint
    return checkpoint if found is None else found[0]
