"""Folders that were cut per rank, as the checkpoint that was cut: what a plan is made of."""

from __future__ import annotations

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.weight_files import rank_of
from mlload.writer.ranks import read_ranks
from mlload.writer.read_state import of_state


def whole_checkpoint(checkpoint: Checkpoint) -> Checkpoint:
    """A folder of per-rank files as the checkpoint that was cut; any other as it is. Raises MlloadError where the
    files of the ranks are not what their manifest, or their config, says."""
    ranks = read_ranks(checkpoint)
    return checkpoint if ranks is None else ranks[0]


def layout_of(checkpoint: Checkpoint) -> str | None:
    """The load_format of the folder that a (whole) checkpoint lies in, None where its tensors lie in one piece each."""
    if any("/" in file.name and of_state(file.name) for file in checkpoint.files):
        return "mlload_state"
    if checkpoint.source.kind != "file" and any(file.used and rank_of(file.name) for file in checkpoint.files):
        return "sharded_state"
    if any(file.used and file.kind == "tensorizer" for file in checkpoint.files):
        return "tensorizer"
    return None
