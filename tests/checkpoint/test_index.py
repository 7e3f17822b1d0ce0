"""`*.index.json` by itself and against the headers; files without an index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.fold import fold_names, ranges
from mlload.checkpoint.weight_files import kind_of_file, numbering, rank_of
from tests.checkpoint import build

INDEX = "model.safetensors.index.json"


def codes(checkpoint: Checkpoint, severity: str | None = None) -> list[str]:
    return [problem.code for problem in checkpoint.problems if severity in (None, problem.severity)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "breaks off at character 0"),
        (b"[]", "holds a list"),
        (b"{", "breaks off"),
        (b'{"a": 1,}', "is not valid JSON"),
        (b"\xff", "is not UTF-8: byte 0xff at position 0"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"metadata": {}}', "has no weight_map"),
        (b'{"weight_map": [1]}', "a list as its weight_map"),
        (b'{"weight_map": null}', "null as its weight_map"),
        (b'{"weight_map": "x"}', "the text 'x' as its weight_map"),
        (b'{"weight_map": {"a": ' + b"9" * 5000 + b"}}", "more than 4,300 digits"),
    ],
)
def test_index_that_is_none(tmp_path: Path, content: bytes, words: str) -> None:
    build.write_sharded(tmp_path)
    (tmp_path / INDEX).write_bytes(content)
    checkpoint = Checkpoint.open(str(tmp_path))
    (finding,) = checkpoint.problems[:1]
    assert finding.code == "FI030" and words in finding.message and finding.severity == "error"
    assert finding.hints[0].command == f"mlload repair {tmp_path} --in-place"
    assert len(checkpoint.tensors) == 16  # the files are read all the same


@pytest.mark.parametrize("value", [None, 3, 2.5, True, ["a"], {"x": "y"}])
def test_entries_that_name_no_file(tmp_path: Path, value: Any) -> None:
    weight_map = build.write_sharded(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {**weight_map, "odd": value}}))
    checkpoint = Checkpoint.open(str(tmp_path))
    assert codes(checkpoint) == ["FI030"] and "'odd'" in checkpoint.problems[0].message
    assert checkpoint.index is not None and checkpoint.index.weight_map == weight_map


@pytest.mark.parametrize(
    "file", ["../secret.safetensors", "/etc/passwd", "a/../../b", "C:evil", "..\\x", "~/x", "", "a\0b"]
)
def test_paths_out_of_the_folder(tmp_path: Path, file: str) -> None:
    inside = tmp_path / "model"
    inside.mkdir()
    build.write_safetensors(tmp_path / "secret.safetensors", {"secret": ("F32", [1])})
    weight_map = build.write_sharded(inside)
    build.write_index(inside, {**weight_map, "secret": file})
    checkpoint = Checkpoint.open(str(inside))
    assert codes(checkpoint, "error") == ["FI037"]
    assert "secret" not in checkpoint.tensors and checkpoint.problems[0].message.isprintable()


def test_a_missing_file_of_a_name_without_end(tmp_path: Path) -> None:
    build.write_index(tmp_path, {**build.write_sharded(tmp_path), "a": "b" * 5000})
    told = [problem for problem in Checkpoint.open(str(tmp_path)).problems if problem.code == "FI031"]
    assert len(told) == 1 and len(told[0].message) < 400


def test_file_in_a_folder_below(tmp_path: Path) -> None:
    build.write_config(tmp_path)
    (tmp_path / "sub").mkdir()
    build.write_safetensors(tmp_path / "sub" / "a.safetensors", {"a": ("F32", [1])}, {"format": "pt"})
    build.write_index(tmp_path, {"a": "sub/a.safetensors"})
    assert "a" in Checkpoint.open(str(tmp_path)).tensors


def test_tensor_twice_in_the_index(tmp_path: Path) -> None:
    weight_map = build.write_sharded(tmp_path)
    raw = json.dumps({"weight_map": weight_map})
    first = next(iter(weight_map))
    twice = raw.replace('{"weight_map": {', f'{{"weight_map": {{"{first}": "{weight_map[first]}", ', 1)
    (tmp_path / INDEX).write_text(twice)
    checkpoint = Checkpoint.open(str(tmp_path))
    assert codes(checkpoint) == ["FI039"] and f"'{first}'" in checkpoint.problems[0].message
    (tmp_path / INDEX).write_text(raw.replace("layers", "\\u006cayers"))
    assert codes(Checkpoint.open(str(tmp_path))) == []


@pytest.mark.parametrize(
    ("total", "found"),
    [
        (1, ["FI036"]),
        ("many", ["FI036"]),
        (-1, ["FI036"]),
        (1e300, ["FI036"]),
        (1536.0, []),
        (1536, []),
        (None, []),
    ],
)
def test_total_size(tmp_path: Path, total: Any, found: list[str]) -> None:
    weight_map = build.write_sharded(tmp_path)
    # 8 layers of (4 x 4 + 4 x 8) floats of 4 bytes
    assert 8 * (16 + 32) * 4 == 1536
    build.write_index(tmp_path, weight_map, total)
    checkpoint = Checkpoint.open(str(tmp_path))
    assert codes(checkpoint) == found
    assert all(problem.severity == "info" for problem in checkpoint.problems)


def test_many_tensors_in_the_wrong_file(tmp_path: Path) -> None:
    weight_map = build.write_sharded(tmp_path, shards=2)
    wrong = dict.fromkeys(weight_map, "model-00001-of-00002.safetensors")
    build.write_index(tmp_path, wrong)
    checkpoint = Checkpoint.open(str(tmp_path))
    # The other file is named by nothing now; its tensors are those that the index looks for in the first.
    assert "FI032" in codes(checkpoint, "error") and "FI034" in codes(checkpoint)
    both = {**wrong, "model.layers.2.mlp.down_proj.weight": "model-00002-of-00002.safetensors"}
    build.write_index(tmp_path, both)
    (finding,) = [problem for problem in Checkpoint.open(str(tmp_path)).problems if problem.code == "FI032"]
    assert finding.severity == "warning" and "3 of them lie in other files" in finding.message


def test_unreadable_file_is_not_called_missing(tmp_path: Path) -> None:
    build.write_sharded(tmp_path)
    (tmp_path / "model-00002-of-00004.safetensors").write_bytes(b"")
    assert codes(Checkpoint.open(str(tmp_path))) == ["FI004"]


def test_numbered_files_without_an_index(tmp_path: Path) -> None:
    build.write_sharded(tmp_path)
    (tmp_path / INDEX).unlink()
    checkpoint = Checkpoint.open(str(tmp_path))
    assert [(problem.code, problem.severity) for problem in checkpoint.problems] == [("FI027", "warning")]
    assert len(checkpoint.tensors) == 16
    (tmp_path / "model-00003-of-00004.safetensors").unlink()
    (finding,) = Checkpoint.open(str(tmp_path)).problems
    assert (finding.code, finding.severity, finding.question) == ("FI026", "error", "right")
    assert finding.where == "model-00003-of-00004.safetensors" and finding.numbers == {"files": 4, "missing": 1}


def test_two_sets_of_weights(tmp_path: Path) -> None:
    build.write_sharded(tmp_path)
    build.write_safetensors(tmp_path / "consolidated.safetensors", {"wq": ("F32", [4])})
    checkpoint = Checkpoint.open(str(tmp_path))
    assert [(problem.code, problem.severity) for problem in checkpoint.problems] == [("FI038", "info")]
    assert "wq" in checkpoint.stray and "wq" not in checkpoint.tensors


def test_weights_of_another_kind_beside_them(tmp_path: Path) -> None:
    build.write_sharded(tmp_path)
    for name in ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin", "other-Q4_0.gguf"):
        (tmp_path / name).write_bytes(b"whatever")
    checkpoint = Checkpoint.open(str(tmp_path))
    assert [(problem.code, problem.severity) for problem in checkpoint.problems] == [("FI034", "info")] * 2
    assert {problem.numbers["files"] for problem in checkpoint.problems} == {1, 2}


def test_adapter_among_weights_without_an_index(tmp_path: Path) -> None:
    build.write_config(tmp_path)
    build.write_safetensors(tmp_path / "model.safetensors", build.layer(0), {"format": "pt"})
    build.write_safetensors(tmp_path / "adapter_model.safetensors", {"lora_A": ("F32", [1])})
    (finding,) = Checkpoint.open(str(tmp_path)).problems
    assert (finding.code, finding.severity) == ("FI034", "warning") and "vLLM reads every" in finding.message


@pytest.mark.parametrize("same_shape", [True, False])
def test_duplicates_that_cannot_be_compared(tmp_path: Path, same_shape: bool) -> None:
    build.write_config(tmp_path)
    wide = 100_000
    build.write_safetensors(tmp_path / "a.safetensors", {"w": ("F32", [wide])}, {"format": "pt"})
    build.write_safetensors(tmp_path / "b.safetensors", {"w": ("F32", [wide + (not same_shape)])}, {"format": "pt"})
    (finding,) = Checkpoint.open(str(tmp_path)).problems
    assert finding.code == "FI035"
    expected = "bytes not compared" if same_shape else "another dtype or shape"
    assert expected in finding.message and finding.severity == ("warning" if same_shape else "error")
    assert finding.numbers["equal"] is (None if same_shape else False)


def test_some_duplicates_compared(tmp_path: Path) -> None:
    build.write_config(tmp_path)
    tensors = {f"w{i}": ("U8", [4]) for i in range(20)}
    for name in ("a.safetensors", "b.safetensors"):
        build.write_safetensors(tmp_path / name, tensors, {"format": "pt"})
    (finding,) = Checkpoint.open(str(tmp_path)).problems
    assert "equal in the 8 that were compared" in finding.message and finding.severity == "warning"


# vLLM's sharded_state


def write_rank(folder: Path, name: str) -> None:
    build.write_safetensors(folder / name, {"model.layers.0.qkv_proj.weight": ("F32", [2])}, {"format": "pt"})


def test_sharded_state(tmp_path: Path) -> None:
    build.write_config(tmp_path)
    for rank in range(2):
        write_rank(tmp_path, f"model-rank-{rank}-part-0.safetensors")
    checkpoint = Checkpoint.open(str(tmp_path))
    assert checkpoint.format == "sharded_state" and checkpoint.problems == ()
    assert set(checkpoint.tensors) == {
        "rank0/model.layers.0.qkv_proj.weight",
        "rank1/model.layers.0.qkv_proj.weight",
    }


def test_sharded_state_with_ranks_missing(tmp_path: Path) -> None:
    build.write_config(tmp_path)
    for stage, tensor in ((0, 0), (0, 1), (1, 0)):
        write_rank(tmp_path, f"model-pp-{stage}-tp-{tensor}-part-0.safetensors")
    write_rank(tmp_path, "model-pp-1-tp-0-part-2.safetensors")
    checkpoint = Checkpoint.open(str(tmp_path))
    assert codes(checkpoint, "error") == ["FI065", "FI065"]
    assert "no part 1" in checkpoint.problems[0].message and "3 of 4 ranks" in checkpoint.problems[1].message
    assert "pp1-tp0/model.layers.0.qkv_proj.weight" in checkpoint.tensors


# Names


def test_names_of_files() -> None:
    kinds = {"a/b.safetensors": "safetensors", "x.GGUF": "gguf", "m.bin": "torch", "optimizer.pt": "other"}
    kinds |= {"m.tensors": "tensorizer", "c.json": "json", "README": "other", "x.txt": "other"}
    assert {name: kind_of_file(name) for name in kinds} == kinds
    assert rank_of("model-00001-of-00002.safetensors") is None


def test_numbers_in_names() -> None:
    assert numbering(["model.safetensors"]) is None
    assert numbering(["a-00001-of-00002.bin", "b-00001-of-00003.bin"]) is None
    assert numbering(["a-00000-of-00002.bin", "a-00001-of-00002.bin"]) == (2, ())
    assert numbering(["a-00002-of-00002.bin"]) == (2, ("a-00001-of-00002.bin",))


def test_folded_names() -> None:
    assert ranges([7, 1, 2, 3]) == "1-3, 7"
    names = [f"model.layers.{i}.{part}" for i in (0, 1, 2, 9) for part in ("a", "b")]
    assert fold_names([*names, "lm_head.weight"]) == "model.layers.0-2, 9, lm_head.weight"
    assert len(fold_names(["a" * 3000])) < 130
    assert fold_names(["a", "b", "c", "d", "e", "f"]) == "a, b, c, d and 2 more"
    assert fold_names(["0.weight", "1.weight"]) == "0-1"
    assert fold_names(["a\nb"]) == "'a\\nb'"
