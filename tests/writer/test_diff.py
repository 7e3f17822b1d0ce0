"""What differs between two checkpoints, against differences made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlload.cli.app import main
from tests.plan.tiny_models import LLAMA
from tests.writer.build import QUANTIZED, read_folder, write_checkpoint, write_quantized, write_safetensors

NORM = "model.norm.weight"


def bf16(values: Any) -> bytes:
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()


def rewritten(folder: Path, changes: dict[str, tuple[str, tuple[int, ...], bytes] | None]) -> None:
    """The folder's tensors in one file, with some of them replaced or left out."""
    tensors = read_folder(folder)
    for path in (*folder.glob("*.safetensors"), *folder.glob("*.index.json")):
        path.unlink()
    for name, content in changes.items():
        if content is None:
            del tensors[name]
        else:
            tensors[name] = content
    write_safetensors(folder / "model.safetensors", tensors)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return write_checkpoint(tmp_path / "a", LLAMA), write_checkpoint(tmp_path / "b", LLAMA)


def compare(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    code = main(["diff", str(pair[0]), str(pair[1]), "--format", "json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == (0 if found["same"] else 1)
    return found


def test_equal_content_in_other_files_is_equal(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    rewritten(pair[1], {})
    found = compare(pair, capsys)
    assert found["same"] and found["equal_tensors"] == len(read_folder(pair[0]))
    assert main(["diff", *map(str, pair)]) == 0
    assert "config and other files\n  but other weight files: " in capsys.readouterr().out


def test_an_index_that_differs_is_told_and_does_not_count(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = pair[1].glob("*.index.json")
    index = json.loads(path.read_text())
    count, total = len(index["weight_map"]), index["metadata"]["total_size"]
    del index["weight_map"][NORM]
    path.write_text(json.dumps(index))
    one, other = f"{count} tensors, total_size {total}", f"{count - 1} tensors, total_size {total}"
    found = compare(pair, capsys)
    assert {"what": "index entries", "a": one, "b": other} in found["layout"]


def test_ranks_are_the_checkpoint_that_they_make(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shard", str(pair[0]), "-o", str(tmp_path / "ranks"), "--tp", "4"]) == 0
    assert compare((tmp_path / "ranks", pair[1]), capsys)["same"]


def test_numbers_of_the_difference(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """[3, 4] against [3, 4.5] and zeros elsewhere: 0.5 at most, 0.5 / 5 relative."""
    one, other = np.zeros(64), np.zeros(64)
    one[:2], other[:2] = (3, 4), (3, 4.5)
    rewritten(pair[0], {NORM: ("BF16", (64,), bf16(one))})
    rewritten(pair[1], {NORM: ("BF16", (64,), bf16(other))})
    (entry,) = compare(pair, capsys)["tensors"]
    assert (entry["name"], entry["what"]) == (NORM, "bytes")
    assert entry["max_difference"] == 0.5 and entry["relative_difference"] == pytest.approx(0.1)
    assert main(["diff", *map(str, pair)]) == 1
    assert "max difference 0.5, 10.00% relative" in capsys.readouterr().out


def test_missing_dtype_and_shape(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    values = np.arange(64)
    rewritten(pair[0], {NORM: ("BF16", (64,), bf16(values)), "lm_head.weight": None})
    rewritten(
        pair[1],
        {
            NORM: ("F32", (64,), values.astype("<f4").tobytes()),
            "model.layers.0.input_layernorm.weight": ("BF16", (2, 32), bytes(128)),
        },
    )
    found = {entry["name"]: entry for entry in compare(pair, capsys)["tensors"]}
    assert {name: entry["what"] for name, entry in found.items()} == {
        NORM: "dtype",
        "lm_head.weight": "only in B",
        "model.layers.0.input_layernorm.weight": "shape",
    }
    assert found[NORM]["max_difference"] == 0


def test_config_and_files(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    (pair[1] / "config.json").write_text(json.dumps({**LLAMA, "rope_theta": 5.0, "transformers_version": "9"}))
    (pair[1] / "tokenizer.json").write_text('{"version": "2.0"}')
    (pair[0] / "README.md").write_text("x")
    found = compare(pair, capsys)
    assert found["config"] == [{"key": "rope_theta", "a": "", "b": "5.0"}]
    assert [entry["file"] for entry in found["files"]] == ["README.md", "tokenizer.json"]


@pytest.mark.parametrize("name", ["fp8-block", "awq", "w4a16"])
def test_quantized_weights_are_compared_by_their_numbers(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One scale doubled: the numbers of its group double, the rest stays."""
    config = {**LLAMA, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "head_dim": 32}
    pair = (write_quantized(tmp_path / "a", name, config), write_quantized(tmp_path / "b", name, config))
    module = "model.layers.0.mlp.down_proj"
    suffix = {"fp8-block": "weight_scale_inv", "awq": "scales", "w4a16": "weight_scale"}[name]
    tensors = read_folder(pair[0])
    dtype, shape, _ = tensors[f"{module}.{suffix}"]
    kind = {"F32": "<f4", "F16": "<f2", "BF16": None}[dtype]
    assert kind is not None
    ones, twos = np.ones(shape, kind), np.ones(shape, kind)
    twos.flat[0] = 2
    weight = {
        key: (content[0], content[1], bytes([0x38]) * len(content[2]))  # 1.0 in e4m3
        for key, content in tensors.items()
        if key == f"{module}.weight" and name == "fp8-block"
    }
    rewritten(pair[0], {f"{module}.{suffix}": (dtype, shape, ones.tobytes()), **weight})
    rewritten(pair[1], {f"{module}.{suffix}": (dtype, shape, twos.tobytes()), **weight})
    found = compare(pair, capsys)
    (entry,) = found["weights"]
    assert entry["name"] == module and QUANTIZED[name][1].format in entry["a"]
    if name == "fp8-block":
        # 128 x 128 of 256 x 256 ones become twos.
        assert entry["max_difference"] == 1 and entry["relative_difference"] == pytest.approx(0.5)
    else:
        assert 0 < entry["max_difference"] <= 15


def test_a_damaged_side_is_told_and_hides_the_answer(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal as far as it can be read is no yes."""
    for folder in pair:
        file = min(folder.glob("*.safetensors"))
        raw = bytearray(file.read_bytes())
        raw[12] = 0xFF
        file.write_bytes(raw)
    assert main(["diff", *map(str, pair)]) == 3
    said = capsys.readouterr().out
    assert "A is not whole: " in said and "B is not whole: " in said and "as far as they can be read" in said


def test_nothing_is_not_the_same_as_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["diff", str(tmp_path / "empty"), str(tmp_path / "empty")]) == 3
    assert "holds no tensors" in capsys.readouterr().err
