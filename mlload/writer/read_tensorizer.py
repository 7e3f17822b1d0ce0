"""tensorizer files of vLLM's own names, one for each rank, read back; see `read_sharded_state`."""

from __future__ import annotations

import re
from dataclasses import replace

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.tensor import TensorRef
from mlload.checkpoint.tensorizer import MARKER, read_tensorizer
from mlload.plan.model import read_model
from mlload.writer.holdings import Holdings
from mlload.writer.read_sharded_state import read_sharded_state

_RANK = re.compile(r".*?(\d+)\.tensors", re.ASCII)
MAX_RANKS = 100_000  # whatever the names of files say
# Buffers that vLLM's own files hold and no checkpoint does.
COMPUTED = ("cos_sin_cache", "inv_freq")


def of_vllm(checkpoint: Checkpoint) -> bool:
    """Whether the names in the files are vLLM's, cut per rank."""
    return MARKER in checkpoint.tensors


def rank_number(name: str) -> int | None:
    """The rank that a file's name tells, None where it tells none."""
    match = _RANK.fullmatch(name)
    return None if match is None else int(match[1][-6:])


def read_rank_files(checkpoint: Checkpoint) -> tuple[Checkpoint, Holdings]:
    """A checkpoint of whole tensors under their usual names, and where their bytes lie. See `read_sharded_state`."""
    label = checkpoint.label
    names = [(number, file) for number, file in enumerate(checkpoint.files) if file.used and file.kind == "tensorizer"]
    tensors: dict[str, TensorRef] = {}
    for number, file in names:
        found = read_tensorizer(checkpoint.source, file.name, file.size, number)
        if found.problems:
            raise MlloadError(f"{label}: {file.name} {found.problems[0][1]}", exit_code=1)
        if found.encrypted:
            raise MlloadError(f"{label}: {file.name} is encrypted, and only its key opens it", exit_code=1)
        rank = rank_number(file.name)
        if rank is None and len(names) > 1:
            raise MlloadError(f"{label}: {file.name} does not say which rank it is of", exit_code=1)
        rank = rank or 0
        for ref in found.tensors:
            if ref.name != MARKER and ref.name.rpartition(".")[2] not in COMPUTED:
                tensors[f"rank{rank}/{ref.name}"] = ref
    ranks = {int(key.partition("/")[0][4:]) for key in tensors}
    lacking = sorted(set(range(min(max(ranks), MAX_RANKS) + 1)) - ranks) if ranks else [0]
    if lacking:
        raise MlloadError(f"{label} is not whole: the file of rank {lacking[0]} is missing", exit_code=1)
    for name in _second_names(checkpoint):
        for key in [key for key in tensors if key.partition("/")[2] == name]:
            del tensors[key]
    whole, holdings = read_sharded_state(replace(checkpoint, format="sharded_state", tensors=tensors, problems=()))
    assert whole.cut is not None
    return replace(whole, cut=whole.cut._replace(layout="tensorizer")), holdings


def _second_names(checkpoint: Checkpoint) -> set[str]:
    """Of a parameter that two modules share, the name that sharded_state leaves out: these files have both."""
    bare = replace(checkpoint, tensors={}, stray={}, format="none", index=None, problems=())
    params = read_model(bare).params
    engines = {param.spec.module: param.spec.engine for param in params}
    found: set[str] = set()
    for param in params:
        table = engines.get(param.spec.alias_of or "")
        if param.alias and table and param.spec.engine:
            names = {f"{table}.weight", f"{param.spec.engine}.weight"}
            found |= names - {min(names)}
    return found
