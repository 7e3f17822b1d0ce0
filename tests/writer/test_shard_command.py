"""What `mlload shard` says and refuses, and how tensors are dealt out to files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlload.checkpoint.finding import MlloadError
from mlload.cli.app import main
from mlload.writer.sizes import parse_size
from tests.plan.tiny_models import LLAMA
from tests.writer.build import WIDE, read_folder, read_safetensors, without_problems, write_checkpoint, write_quantized


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("5GB", 5_000_000_000), ("500MB", 500_000_000), ("2GiB", 2 << 30), ("1.5kb", 1500), ("7", 7), ("3 B", 3)],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_size(text, "--max-shard-size") == nbytes


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "5 apples", "0.1B", "1e9"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(MlloadError, match="--max-shard-size takes a size"):
        parse_size(text, "--max-shard-size")


def test_parts_of_one_weight_stay_together(tmp_path: Path) -> None:
    """Files of 300 kB: qweight, qzeros, scales of one linear in one of them; the index tells the truth."""
    source = write_quantized(tmp_path / "source", "awq", {**WIDE, "num_hidden_layers": 2})
    assert main(["shard", str(source), "-o", str(tmp_path / "out"), "--max-shard-size", "300KB"]) == 0
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    files: dict[str, set[str]] = {}
    for name, file in index["weight_map"].items():
        if name.endswith((".qweight", ".qzeros", ".scales")):
            files.setdefault(name.rpartition(".")[0], set()).add(file)
    assert len(files) == 14 and all(len(found) == 1 for found in files.values())
    whole = read_folder(source)
    assert read_folder(tmp_path / "out") == whole
    assert index["metadata"]["total_size"] == sum(len(raw) for _, _, raw in whole.values())
    for path in (tmp_path / "out").glob("*.safetensors"):
        held = read_safetensors(path)
        size = sum(len(raw) for _, _, raw in held.values())
        assert size <= 300_000 or len({name.rpartition(".")[0] for name in held}) == 1
    without_problems(tmp_path / "out")


def test_scattered_files_become_one_checkpoint(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", LLAMA, files=5)
    (source / "model.safetensors.index.json").unlink()
    assert main(["shard", str(source), "-o", str(tmp_path / "out"), "--merge"]) == 0
    assert [path.name for path in (tmp_path / "out").glob("*.safetensors")] == ["model.safetensors"]
    assert read_folder(tmp_path / "out") == read_folder(source)


def test_json_and_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_checkpoint(tmp_path / "source", LLAMA)
    words = ["shard", str(source), "--tp", "2", "--format", "json"]
    assert main([*words, "--dry-run"]) == 0
    dry: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert not dry["written"] and list(tmp_path.iterdir()) == [source]
    assert main([*words, "-o", str(tmp_path / "out"), "--verify"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["written"] and done["verified"] and done["ranks"] == dry["ranks"]
    for rank in done["ranks"]:
        held = read_safetensors(tmp_path / "out" / f"rank-{rank['rank']:05d}" / "model.safetensors")
        assert rank["bytes"] == sum(len(raw) for _, _, raw in held.values())


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ([], 2, "say what to make"),
        (["--tp", "2"], 2, "-o OUT says where"),
        (["--tp", "2", "--merge"], 2, "--merge makes one checkpoint"),
        (["--tp", "2,4", "-o", "x"], 2, "--tp takes one size"),
        (["--tp", "3", "-o", "x"], 1, "TP001"),
        (["--layout", "tensorizer", "--max-shard-size", "1GB", "-o", "x"], 2, "one file for each rank"),
        (["--max-shard-size", "big", "-o", "x"], 2, "takes a size"),
    ],
)
def test_refusals(words: list[str], code: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_checkpoint(tmp_path / "source", LLAMA)
    words = [str(tmp_path / word) if word == "x" else word for word in words]
    assert main(["shard", str(source), *words]) == code
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [source]


def test_a_damaged_source_is_not_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_checkpoint(tmp_path / "source", LLAMA)
    path = source / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    assert main(["shard", str(source), "-o", str(tmp_path / "out"), "--tp", "2"]) == 1
    assert "is not whole" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [["shard", "-o", "OUT", "--tp", "2"], ["load-test", "--weights-only"]])
def test_a_config_that_cannot_be_read_is_the_reason(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_checkpoint(tmp_path / "source", LLAMA)
    (source / "config.json").write_text("")
    assert main([str(tmp_path / "out") if word == "OUT" else word for word in [*words, str(source)]]) != 0
    said = capsys.readouterr().err
    assert "config.json is empty: 0 bytes, where JSON is expected" in said and "type ''" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("words", [["shard", "--merge"], ["quantize", "--method", "fp8"], ["convert"]])
def test_an_output_inside_its_source_is_refused(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be read as a part of the checkpoint by whatever lists that folder next."""
    source = write_checkpoint(tmp_path / "source", LLAMA)
    before = sorted(source.iterdir())
    (tmp_path / "link").symlink_to(source)
    monkeypatch.chdir(source)
    for typed in ("out/", str(tmp_path / "link" / "out")):
        assert main([words[0], ".", "-o", typed, *words[1:]]) == 2
        assert "lies inside the source" in capsys.readouterr().err
    assert sorted(source.iterdir()) == before


def test_an_output_beside_a_single_file_is_fine(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", LLAMA)
    file = next(iter(source.glob("*.safetensors")))
    assert main(["shard", str(file), "-o", str(source / "out"), "--merge"]) == 0
    assert (source / "out" / "model.safetensors").exists()
