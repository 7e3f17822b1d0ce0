"""A folder cut per rank is loaded at its size, and the model says what the whole one says.

For every format with weights that mean something: the files of a rank hold the bytes that the loader reads of the whole
checkpoint for that rank, and the logits from them are the same to the last bit.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mlload.cli.app import main
from tests.plan.tiny_models import LLAMA
from tests.real_models import RealModel
from tests.writer.build import read_safetensors, write_checkpoint

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from mlload import profiles  # noqa: E402
from mlload.checkpoint.checkpoint import Checkpoint  # noqa: E402
from mlload.engine.native import NativeEngine  # noqa: E402
from mlload.loader import get_model_loader  # noqa: E402
from mlload.loader.whole import whole_checkpoint  # noqa: E402
from mlload.plan.mesh import Mesh  # noqa: E402
from mlload.plan.model import read_model  # noqa: E402
from mlload.plan.plan import Plan, make_plan  # noqa: E402
from tests.engine.packing import FORMATS  # noqa: E402
from tests.engine.ranks import on_ranks  # noqa: E402
from tests.engine.test_quantized import write  # noqa: E402
from tests.engine.tiny import save  # noqa: E402
from tests.loader.files import empty_destinations, raw  # noqa: E402

QUICK = ("--dtype", "float32", "--batch", "1", "--prompt-len", "16", "--decode", "2", "--format", "json")


@pytest.mark.slow
def test_the_real_model_from_its_ranks(real_model: RealModel, tmp_path: Path) -> None:
    """The next token's distribution at 127 positions, against the record of the whole model on one rank."""
    source, record = real_model("smollm2"), tmp_path / "record.json"
    assert main(["shard", str(source), "-o", str(tmp_path / "ranks"), "--tp", "3"]) == 0
    load_test(source, "--record", str(record))
    said = load_test(tmp_path / "ranks", "--tp", "3", "--expect", str(record))
    assert said["load_format"] == "mlload_state" and len(said["ranks"]) == 3


def load_test(folder: Path, *words: str) -> dict[str, object]:
    command = [sys.executable, "-m", "mlload", "load-test", str(folder), *words, *QUICK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


def model_config(heads: int, kv: int) -> dict[str, object]:
    """Heads of 32; sides that every group and block of the formats divides at the sizes that are tried."""
    return {
        "model_type": "llama", "vocab_size": 96, "hidden_size": 32 * heads, "intermediate_size": 64 * heads,
        "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": 32,
        "tie_word_embeddings": False,
    }  # fmt: skip


@pytest.fixture(scope="module")
def float_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """tp -> a model that it divides."""
    even, third = tmp_path_factory.mktemp("even"), tmp_path_factory.mktemp("third")
    save(even, model_config(8, 2))
    save(third, model_config(6, 3))
    return {1: even, 2: even, 3: third, 4: even, 8: even}


def planned(folder: Path, tp: int) -> Plan:
    model = read_model(whole_checkpoint(Checkpoint.open(str(folder))))
    return make_plan(model, profiles.load("native"), Mesh(tp), dtype="float32")


def logits(plan: Plan) -> list[object]:
    """Of every rank."""
    ids = torch.randint(0, 96, (2, 7), generator=torch.Generator().manual_seed(5))
    return on_ranks(plan.mesh.tp, lambda rank, group: NativeEngine(plan, rank, group).start().logits(ids))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("tp", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("name", [None, *FORMATS])
def test_every_format_from_its_ranks(name: str | None, tp: int, float_folders: dict[int, Path], tmp_path: Path) -> None:
    source = float_folders[tp]
    if name is not None:
        write(source, name, tmp_path / "packed", tmp_path / "floats")
        source = tmp_path / "packed"
    plan = planned(source, tp)
    words = ["shard", str(source), "-o", str(tmp_path / "ranks"), "--tp", str(tp), "--engine", "native"]
    if any(finding.severity == "error" for finding in plan.violations):
        assert main(words) == 1
        pytest.skip(f"not at tp {tp}: {plan.violations[0].message}")
    assert main(words) == 0
    for rank in plan.mesh.ranks:
        destinations = empty_destinations(plan, rank)
        get_model_loader("safetensors").load(plan, rank, destinations)
        held = read_safetensors(tmp_path / "ranks" / f"rank-{rank:05d}" / "model.safetensors")
        assert held.keys() == destinations.keys()
        for tensor, (_, _, data) in held.items():
            assert data == raw(destinations[tensor].param), tensor
    again = planned(tmp_path / "ranks", tp)
    for want, have in zip(logits(plan), logits(again), strict=True):
        assert torch.equal(want, have)


def test_the_files_of_a_rank_are_what_the_loader_reads(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", LLAMA)
    assert main(["shard", str(source), "-o", str(tmp_path / "ranks"), "--tp", "4", "--engine", "native"]) == 0
    plan = planned(source, 4)
    for rank in plan.mesh.ranks:
        destinations = empty_destinations(plan, rank)
        get_model_loader("safetensors").load(plan, rank, destinations)
        held = read_safetensors(tmp_path / "ranks" / f"rank-{rank:05d}" / "model.safetensors")
        assert {name: data for name, (_, _, data) in held.items()} == {
            name: raw(one.param) for name, one in destinations.items()
        }
