"""The `mlload` layout: one folder per rank, checkpoint names, on-disk formats, and a manifest that says how it was cut.

config.json, tokenizer, ...        as in the source
manifest.json                      see docs/mlload-state.md
rank-00000/model.safetensors       that rank's share of every tensor
unassigned/model.safetensors       tensors that no rank reads, so that a merge gives everything back
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.plan.plan import Plan
from mlload.writer.boxes import Shape, whole
from mlload.writer.columns import Histories, Shared
from mlload.writer.holdings import Holdings, Stored, uncovered
from mlload.writer.layout import Layout, OutputFile, OutputTensor, index_of, whole_tensor
from mlload.writer.rank_tensors import rank_tensors
from mlload.writer.reshape import INDEX, numbered

MANIFEST = "manifest.json"
LAYOUT = "mlload-state"
VERSION = 1
UNASSIGNED = "unassigned"


def rank_folder(rank: int) -> str:
    return f"rank-{rank:05d}"


def state_layout(
    plan: Plan, checkpoint: Checkpoint, holdings: Holdings, limit: int | None, group_of: Callable[[str], str]
) -> Layout:
    """All ranks of a plan, with the manifest."""
    files: list[OutputFile] = []
    texts: dict[str, bytes] = {}
    ranks: list[dict[str, Any]] = []
    shared, held = Shared(), Histories()

    def add(folder: str, tensors: list[OutputTensor]) -> tuple[OutputFile, ...]:
        mine = tuple(shared.file(file) for file in numbered(tensors, limit, group_of, folder + "/"))
        if len(mine) > 1:
            texts[f"{folder}/{INDEX}"] = index_of(
                [OutputFile(file.name.rpartition("/")[2], b"", file.tensors, file.size) for file in mine]
            )
        files.extend(mine)
        for tensor in tensors:
            held.add(tensor.name, folder, tensor.takes)
        return mine

    for rank in plan.mesh.ranks:
        folder = rank_folder(rank)
        mine = add(folder, list(rank_tensors(plan, rank, holdings)))
        ranks.append(
            {
                "rank": rank,
                "tp_rank": plan.mesh.tp_rank(rank),
                "pp_rank": plan.mesh.pp_rank(rank),
                "folder": folder,
                "files": [file.name for file in mine],
                "bytes": sum(tensor.nbytes for file in mine for tensor in file.tensors),
            }
        )
    rest = _unassigned(holdings, held)
    if rest:
        add(UNASSIGNED, [whole_tensor(name, holdings[name].dtype, holdings[name].shape) for name in rest])
    manifest = {
        "layout": LAYOUT,
        "layout_version": VERSION,
        "tp": plan.mesh.tp,
        "pp": plan.mesh.pp,
        "ep": plan.mesh.ep,
        "cut_by": f"{plan.profile.engine} {plan.profile.version}",
        "ranks": ranks,
        "source": _source(checkpoint, holdings),
        **_cuts(holdings, held),
    }
    texts[MANIFEST] = (json.dumps(manifest, separators=(",", ":"), ensure_ascii=False) + "\n").encode(
        "utf-8", "surrogatepass"
    )
    return Layout(tuple(files), texts)


def _unassigned(holdings: Holdings, held: Histories) -> list[str]:
    """Tensors that no rank reads, or not all of."""
    judged: dict[tuple[Shape, int], bool] = {}
    found: list[str] = []
    for name, source in holdings.tensors.items():
        key = (source.shape, held.number(name))
        if key not in judged:
            shares = tuple(Stored("", 0, (), share) for share in held.shares(key[1]).values())
            judged[key] = bool(shares) and uncovered(name, source._replace(stored=shares)) is None
        if not judged[key]:
            found.append(name)
    return found


def _source(checkpoint: Checkpoint, holdings: Holdings) -> dict[str, Any]:
    return {
        "fingerprint": holdings.fingerprint,
        "headers": checkpoint.fingerprint,
        "revision": checkpoint.revision,
        "files": [
            {"name": file.name, "size": file.size, "sha256": file.digest} for file in checkpoint.files if file.used
        ],
    }


def _cuts(holdings: Holdings, held: Histories) -> dict[str, Any]:
    """Each way of cutting once, and which tensor is cut in which: layers look alike."""
    cuts: list[dict[str, Any]] = []
    numbers: dict[tuple[str, Shape, int], int] = {}
    tensors: dict[str, int] = {}
    for name in held.names():
        source = holdings[name]
        key = (source.dtype, source.shape, held.number(name))
        if key not in numbers:
            numbers[key] = len(cuts)
            entire = ((whole(source.shape), whole(source.shape)),)
            cuts.append(
                {
                    "dtype": source.dtype,
                    "shape": source.shape,
                    "shares": {
                        folder: None if pairs == entire else pairs for folder, pairs in held.shares(key[2]).items()
                    },
                }
            )
        tensors[name] = numbers[key]
    return {"cuts": cuts, "tensors": tensors}
