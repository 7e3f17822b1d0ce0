"""LD: load formats against the files that are there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlload import profiles
from mlload.checkpoint.checkpoint import FileRef
from mlload.plan.mesh import Mesh
from mlload.plan.model import read_model
from mlload.plan.plan import make_plan
from mlload.validators.context import Request
from mlload.validators.verdict import Verdict, judge
from tests.quant.checkpoints import checkpoint
from tests.validators.build import LLAMA, llama, of


def asked(load_format: str, *names: str, tp: int = 1) -> Verdict:
    found = replace(checkpoint(LLAMA, llama()), files=tuple(FileRef(name, 1, "other") for name in names))
    plan = make_plan(read_model(found), profiles.load("vllm", "0.33"), Mesh(tp), capability=(9, 0))
    return judge(plan, Request(capability="9.0", load_format=load_format))


def test_ld001_a_format_that_the_engine_has_not() -> None:
    found = asked("gguf", "model.safetensors")
    (finding,) = of(found, "LD001")
    assert found.starts is False and "safetensors" in finding.message


@pytest.mark.parametrize(
    ("load_format", "names", "fine"),
    [
        ("safetensors", ("model.safetensors",), True),
        ("safetensors", ("pytorch_model.bin",), False),
        ("fastsafetensors", ("pytorch_model.bin",), False),
        ("pt", ("pytorch_model.bin",), True),
        ("pt", ("model.safetensors",), False),
        ("npcache", ("model.safetensors",), False),
        ("mistral", ("consolidated-00001-of-00002.safetensors",), True),
        ("mistral", ("model.safetensors",), False),
        ("tensorizer", ("model.safetensors",), False),
        ("auto", ("pytorch_model.bin",), True),
        ("hf", ("pytorch_model.bin",), True),
    ],
)
def test_ld002_its_files_are_there(load_format: str, names: tuple[str, ...], fine: bool) -> None:
    found = asked(load_format, *names)
    assert (not of(found, "LD002"), found.starts) == (fine, fine)


def test_ld003_a_file_for_every_rank() -> None:
    two = [f"model-rank-{rank}-part-0.safetensors" for rank in range(2)]
    assert asked("sharded_state", *two, tp=2).starts is True
    (finding,) = of(asked("sharded_state", *two, tp=1), "LD003")
    assert finding.numbers == {"ranks": 2, "tp": 1}
    assert asked("sharded_state", "model.safetensors").starts is False


def test_ld004_dummy_weights_are_noise() -> None:
    found = asked("dummy", "model.safetensors")
    assert (found.starts, found.verdict) == (True, "warn") and of(found, "LD004")
