"""Folders that were cut per rank, in whichever layout, as the checkpoint that was cut."""

from __future__ import annotations

from dataclasses import replace

from mlload.checkpoint.checkpoint import Checkpoint, Cut
from mlload.checkpoint.finding import MlloadError
from mlload.writer.holdings import Holdings
from mlload.writer.read_state import is_state, of_state, read_manifest, read_state

ELSEWHERE = "FI064"  # of weights below the top of the folder, where the mlload layout has them


def is_cut(checkpoint: Checkpoint) -> bool:
    """Whether a folder holds ranks' shares; told without reading anything more."""
    if checkpoint.format == "tensorizer":
        from mlload.checkpoint.tensorizer import MARKER

        return MARKER in checkpoint.tensors
    return checkpoint.format == "sharded_state" or is_state(checkpoint)


def read_ranks(checkpoint: Checkpoint) -> tuple[Checkpoint, Holdings] | None:
    """Whole tensors and where their bytes lie, None for a checkpoint that was not cut. Raises MlloadError where the
    files of the ranks are not what their manifest, or their config, says."""
    if not is_cut(checkpoint):
        return None
    if is_state(checkpoint):
        return read_state(checkpoint)
    if checkpoint.format == "sharded_state":
        from mlload.writer.read_sharded_state import read_sharded_state

        return read_sharded_state(checkpoint)
    from mlload.writer.read_tensorizer import read_rank_files

    return read_rank_files(checkpoint)


def whole(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint that was cut, where it can be told; any other as it is."""
    found = as_cut(checkpoint)
    return checkpoint if found.cut is None or found.cut.untold or found.cut.fault else found


def as_cut(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint that was cut, with what was found of the folder. Where its tensors cannot be told, one without
    any, whose `cut` says why not. Any other checkpoint as it is."""
    if not is_cut(checkpoint):
        return checkpoint
    problems = tuple(problem for problem in checkpoint.problems if problem.code != ELSEWHERE)
    try:
        found = read_ranks(checkpoint)
        assert found is not None
        return replace(found[0], problems=problems)
    except MlloadError as error:
        from mlload.writer.read_sharded_state import Untold

        cut = _by_names(checkpoint)
        if isinstance(error, Untold):
            cut = cut._replace(untold=error.message)
        elif not any(problem.severity == "error" and problem.question == "starts" for problem in problems):
            cut = cut._replace(fault=error.message)
    return replace(checkpoint, tensors={}, stray={}, format="none", index=None, problems=problems, cut=cut)


def _by_names(checkpoint: Checkpoint) -> Cut:
    """The sizes as far as the names of files and folders tell them."""
    if is_state(checkpoint):
        try:
            manifest = read_manifest(checkpoint)
            return Cut("mlload", manifest["tp"], manifest["pp"], manifest["ep"])
        except MlloadError:
            folders = {file.name.split("/")[0] for file in checkpoint.files if of_state(file.name)}
            return Cut("mlload", sum(1 for folder in folders if folder.startswith("rank-")))
    if checkpoint.format == "tensorizer":
        from mlload.writer.read_tensorizer import rank_number

        numbers = [rank_number(file.name) for file in checkpoint.files if file.used]
        return Cut("tensorizer", max((number + 1 for number in numbers if number is not None), default=1))
    from mlload.writer.read_sharded_state import cut_of

    return cut_of(checkpoint)
