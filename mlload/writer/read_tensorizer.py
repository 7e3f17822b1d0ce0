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
# Buffers that vLLM's own files hold and no checkpoint does.
COMPUTED = ("cos_sin_cache", "inv_freq")


def of_vllm(checkpoint: Checkpoint) -> bool:
    """Whether the names in the files are vLLM's, cut per rank."""
    return MARKER in checkpoint.tensors


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
        match = _RANK.fullmatch(file.name)
        if match is None and len(names) > 1:
            raise MlloadError(f"{label}: {file.name} does not say which rank it is of", exit_code=1)
        rank = int(match[1]) if match and len(names) > 1 else 0
        for ref in found.tensors:
            if ref.name != MARKER and ref.name.rpartition(".")[2] not in COMPUTED:
                tensors[f"rank{rank}/{ref.name}"] = ref
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
