"""Indexes and files put right, shown before, each file replaced as a whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mlload.cli.app import main
from tests.plan.tiny_models import LLAMA
from tests.writer.build import read_folder, read_safetensors, without_problems, write_checkpoint, write_safetensors

INDEX = "model.safetensors.index.json"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "source", LLAMA)


def index_of(folder: Path) -> dict[str, str]:
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    assert isinstance(weight_map, dict)
    return weight_map


def test_a_sound_folder_needs_nothing(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repair", str(source)]) == 0
    assert "nothing to repair" in capsys.readouterr().out


@pytest.mark.parametrize("damage", ["gone", "no json", "wrong file", "incomplete", "wrong total"])
def test_the_index_is_rebuilt(source: Path, damage: str) -> None:
    good = index_of(source)
    document = json.loads((source / INDEX).read_text())
    names = list(good)
    if damage == "gone":
        (source / INDEX).unlink()
    elif damage == "no json":
        (source / INDEX).write_text("{")
    elif damage == "wrong file":
        document["weight_map"][names[0]] = document["weight_map"][names[-1]]
    elif damage == "incomplete":
        del document["weight_map"][names[0]]
    else:
        document["metadata"]["total_size"] += 1
    if damage in ("wrong file", "incomplete", "wrong total"):
        (source / INDEX).write_text(json.dumps(document))
    before = {path.name: path.read_bytes() for path in source.iterdir() if path.is_file()}
    assert main(["repair", str(source)]) == 1
    assert before == {path.name: path.read_bytes() for path in source.iterdir() if path.is_file()}, "shown, not done"
    assert main(["repair", str(source), "--in-place"]) == 0
    assert index_of(source) == good
    without_problems(source)
    assert main(["repair", str(source)]) == 0


def test_copies_are_left_out(source: Path) -> None:
    whole = read_folder(source)
    second = source / "model-00002-of-00002.safetensors"
    held = read_safetensors(second)
    name = next(iter(index_of(source)))
    write_safetensors(second, {**held, name: whole[name]})
    assert main(["repair", str(source), "--index"]) == 0, "the index itself is right"
    assert main(["repair", str(source), "--in-place"]) == 0
    assert read_folder(source) == whole


def test_copies_that_differ_are_nobodys_to_choose(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second = source / "model-00002-of-00002.safetensors"
    held = read_safetensors(second)
    name = next(iter(index_of(source)))
    dtype, shape, raw = read_folder(source)[name]
    write_safetensors(second, {**held, name: (dtype, shape, raw[:-1] + bytes([raw[-1] ^ 1]))})
    before = second.read_bytes()
    assert main(["repair", str(source), "--in-place"]) == 1
    assert f"{name} differs" in capsys.readouterr().err
    assert second.read_bytes() == before


def test_metadata_is_completed(source: Path) -> None:
    path = source / "model-00001-of-00002.safetensors"
    whole = read_folder(source)
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header["__metadata__"] = {"made": "by hand"}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
    assert main(["repair", str(source), "--in-place"]) == 0
    fresh = json.loads(path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")])
    assert fresh["__metadata__"] == {"format": "pt", "made": "by hand"}
    again = shutil.copy(path, source.parent / "x.safetensors")
    assert Path(again).exists()
    assert {name: fresh[name]["shape"] for name in fresh if name != "__metadata__"} == {
        name: list(whole[name][1]) for name in fresh if name != "__metadata__"
    }


def test_a_missing_file_is_not_hidden(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source / "model-00002-of-00002.safetensors").unlink()
    assert main(["repair", str(source), "--in-place"]) == 1
    assert "model-00002-of-00002.safetensors is missing" in capsys.readouterr().err


def test_the_line_that_does_it_says_what_was_asked(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source / INDEX).unlink()
    assert main(["repair", str(source), "--index"]) == 1
    assert f"mlload repair {source} --index --in-place" in capsys.readouterr().err


def test_ranks_have_no_index(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for layout in ("mlload", "vllm", "tensorizer"):
        out = tmp_path / layout
        assert main(["shard", str(source), "-o", str(out), "--tp", "2", "--layout", layout]) == 0
        for words in (["repair", str(out)], ["convert", str(out), "-o", str(tmp_path / "converted")]):
            assert main(words) == 2
            assert f"mlload shard {out} -o FOLDER --merge" in capsys.readouterr().err
