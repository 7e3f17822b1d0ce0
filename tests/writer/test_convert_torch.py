"""torch.save files become safetensors without anybody unpickling them."""

from __future__ import annotations

import json
import os
import pickle
import sys
import zipfile
from pathlib import Path

import pytest

from mlload.cli.app import main
from tests.plan.tiny_models import LLAMA
from tests.writer.build import read_folder, write_checkpoint

torch = pytest.importorskip("torch")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of two .bin files with the tensors of a safetensors folder beside it."""
    folder = write_checkpoint(tmp_path / "plain", LLAMA)
    tensors = {
        name: torch.frombuffer(bytearray(raw), dtype=torch.bfloat16).reshape(shape)
        for name, (_, shape, raw) in read_folder(folder).items()
    }
    bins = tmp_path / "bins"
    bins.mkdir()
    names = list(tensors)
    weight_map = {}
    for number, part in enumerate((names[:7], names[7:]), 1):
        file = f"pytorch_model-{number:05d}-of-00002.bin"
        torch.save({name: tensors[name] for name in part}, bins / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (bins / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    (bins / "config.json").write_text(json.dumps(LLAMA))
    return bins


def test_tensors_are_equal(source: Path, tmp_path: Path) -> None:
    assert main(["convert", str(source), "-o", str(tmp_path / "out"), "--verify"]) == 0
    assert read_folder(tmp_path / "out") == read_folder(tmp_path / "plain")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]


def test_shared_storages_become_tensors_of_their_own(tmp_path: Path) -> None:
    """A tied head and a view of two rows, all of one storage."""
    (tmp_path / "in").mkdir()
    table = torch.arange(32, dtype=torch.float32).reshape(8, 4)
    torch.save({"embed.weight": table, "head.weight": table, "rows": table[2:4]}, tmp_path / "in" / "pytorch_model.bin")
    (tmp_path / "in" / "config.json").write_text("{}")
    assert main(["convert", str(tmp_path / "in"), "-o", str(tmp_path / "out")]) == 0
    found = read_folder(tmp_path / "out")
    whole = table.numpy().tobytes()
    assert found == {
        "embed.weight": ("F32", (8, 4), whole),
        "head.weight": ("F32", (8, 4), whole),
        "rows": ("F32", (2, 4), whole[32:64]),
    }


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(Path(sys.argv[0]).parent / "never"),)


def test_code_in_a_pickle_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "x")])
    with zipfile.ZipFile(tmp_path / "in" / "pytorch_model.bin", "w") as archive:
        archive.writestr("m/data.pkl", pickle.dumps({"weight": Evil()}, protocol=2))
        archive.writestr("m/version", "3\n")
    (tmp_path / "in" / "config.json").write_text("{}")
    assert main(["convert", str(tmp_path / "in"), "-o", str(tmp_path / "out")]) != 0
    assert not (tmp_path / "never").exists() and not (tmp_path / "out").exists()
