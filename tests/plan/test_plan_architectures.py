"""Every covered architecture planned on several meshes: ranks put the model together again, sizes add up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlload import profiles
from mlload.checkpoint.checkpoint import Checkpoint
from mlload.plan.mesh import Mesh
from mlload.plan.model import read_model
from mlload.plan.plan import make_plan
from mlload.plan.segments import Box
from tests.plan.architecture_cases import CASES

MESHES = (Mesh(2), Mesh(2, 2, ep=True), Mesh(3))


def cells(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)


@pytest.mark.parametrize("model_type", sorted(CASES))
def test_ranks_hold_every_byte_in_place(model_type: str, tmp_path: Path) -> None:
    profile = profiles.load("vllm", "0.33")
    for number, case in enumerate(CASES[model_type]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": model_type, **case.config}))
        of = read_model(Checkpoint.open(str(folder)))
        source: dict[str, np.ndarray[Any, Any]] = {}
        for param in of.params:
            if param.spec.draft:
                continue
            for path in param.modules():
                for tensor in param.stored:
                    name = path + tensor.suffix
                    assert name not in source, f"{name} belongs to two families"
                    source[name] = np.arange(int(np.prod(tensor.shape)), dtype=np.int64).reshape(tensor.shape)
        assert source
        for mesh in MESHES:
            plan = make_plan(of, profile, mesh)
            covered = {name: np.zeros(array.shape, dtype=bool) for name, array in source.items()}
            for sizes in plan.ranks():
                held: dict[str, np.ndarray[Any, Any]] = {}
                total = 0
                for segment in plan.segments(sizes.rank):
                    own = held.setdefault(segment.tensor, np.full(segment.shape, -1, dtype=np.int64))
                    assert (own[cells(segment.to)] == -1).all(), f"{segment.tensor} is written twice"
                    own[cells(segment.to)] = source[segment.tensor][cells(segment.box)]
                    covered[segment.tensor][cells(segment.box)] = True
                    total += segment.nbytes
                assert total == sizes.disk_bytes
                assert all((array >= 0).all() for array in held.values())
                assert sum(sizes.by_dtype.values()) == sizes.weight_bytes
            missing = [name for name, seen in covered.items() if not seen.all()]
            assert not missing, f"{mesh.label()}: {missing[:5]}"
