"""`mlload validate` on folders that hold the ranks of one size, in each layout that `mlload shard` writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from mlload.cli.app import main
from tests.plan.tiny_models import LLAMA, MIXTRAL
from tests.validators.served import tokenizer_json
from tests.writer.build import write_checkpoint, write_quantized


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return written(tmp_path / "source", LLAMA)


def written(folder: Path, config: dict[str, Any]) -> Path:
    """With a tokenizer that the engine starts with."""
    write_checkpoint(folder, config)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json({"<eos>": 2}, words=64)))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


def cut(source: Path, out: Path, layout: str, *words: str) -> Path:
    assert main(["shard", str(source), "-o", str(out), "--layout", layout, *words]) == 0
    return out


def asked(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> tuple[int, dict[str, Any], list[str]]:
    """(exit code, the entry, codes of its errors)"""
    capsys.readouterr()
    code = main(["validate", str(folder), "--format", "json", *words])
    (entry,) = json.loads(capsys.readouterr().out)["results"]
    return code, entry, [f["code"] for f in entry["findings"] if f["severity"] == "error"]


@pytest.mark.parametrize(
    ("layout", "loader", "more"),
    [
        ("vllm", "sharded_state", ""),
        (
            "tensorizer",
            "tensorizer",
            ' --model-loader-extra-config \'{"tensorizer_uri": "OUT/model-rank-%03d.tensors"}\'',
        ),
    ],
)
def test_ranks_start_at_their_size_with_their_loader_alone(
    layout: str, loader: str, more: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = cut(source, tmp_path / "out", layout, "--tp", "2")
    code, entry, errors = asked(capsys, out, "--tp", "2", "--load-format", loader)
    assert (code, errors, entry["starts"]) == (0, [], True)
    for words, refusal in (
        (["--tp", "2"], "LD005"),
        (["--tp", "1", "--load-format", loader], "LD003"),
        (["--tp", "2", "--pp", "2", "--load-format", loader], "LD003"),
        (["--tp", "2", "--load-format", "safetensors"], "LD005"),
    ):
        code, entry, errors = asked(capsys, out, *words)
        assert (code, errors, entry["starts"]) == (1, [refusal], False), words
        command = f"vllm serve {out} --tensor-parallel-size 2 --load-format {loader}" + more.replace("OUT", str(out))
        assert entry["serve"] == command


def test_the_engines_own_command_gets_the_loader(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = cut(source, tmp_path / "out", "vllm", "--tp", "2")
    capsys.readouterr()
    assert main(["validate", "--", "vllm", "serve", str(out), "-tp", "2", "--load-format", "auto", "--seed", "1"]) == 1
    assert f"would start: vllm serve {out} -tp 2 --load-format sharded_state --seed 1" in capsys.readouterr().out


def test_the_layout_of_mlload_is_to_be_merged(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = cut(source, tmp_path / "out", "mlload", "--tp", "2")
    code, entry, errors = asked(capsys, out, "--tp", "2")
    assert (code, errors, entry["serve"]) == (1, ["LD005"], None)
    assert [f["hints"][0]["command"] for f in entry["findings"]] == [f"mlload shard {out} -o OUT --merge"]
    assert asked(capsys, out, "--tp", "2", "--engine", "native")[2] == []


def test_stages_and_whole_experts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = written(tmp_path / "source", MIXTRAL)
    staged = cut(source, tmp_path / "staged", "vllm", "--tp", "1", "--pp", "2")
    dealt = cut(source, tmp_path / "dealt", "vllm", "--tp", "2", "--ep")
    loader = ("--load-format", "sharded_state")
    assert asked(capsys, staged, "--pp", "2", *loader)[0] == 0
    assert asked(capsys, staged, "--tp", "2", *loader)[2] == ["LD003"]
    assert asked(capsys, dealt, "--tp", "2", "--ep", *loader)[0] == 0
    assert asked(capsys, dealt, "--tp", "2", *loader)[2] == ["LD003"]


def test_an_unusual_size_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """5 stages are none of the sizes that are tried for other checkpoints."""
    source = written(tmp_path / "source", {**LLAMA, "num_hidden_layers": 5})
    out = cut(source, tmp_path / "out", "vllm", "--tp", "1", "--pp", "5")
    code, entry, errors = asked(capsys, out)
    assert (code, errors) == (1, ["LD005"])
    assert entry["serve"] == f"vllm serve {out} --pipeline-parallel-size 5 --load-format sharded_state"


def test_a_rank_of_another_checkpoint(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half as wide an MLP: its shapes are not what config.json says."""
    out = cut(source, tmp_path / "out", "vllm", "--tp", "2")
    narrow = written(tmp_path / "narrow", {**LLAMA, "intermediate_size": LLAMA["intermediate_size"] // 2})
    other = cut(narrow, tmp_path / "other", "vllm", "--tp", "2")
    shutil.copy(other / "model-rank-1-part-0.safetensors", out)
    code, entry, errors = asked(capsys, out, "--tp", "2", "--load-format", "sharded_state")
    assert (code, errors) == (1, ["LD006"])
    (out / "model-rank-1-part-0.safetensors").unlink()
    code, entry, errors = asked(capsys, out, "--tp", "2", "--load-format", "sharded_state")
    assert code == 1 and "LD006" in errors and entry["serve"] is None


@pytest.mark.parametrize("name", ["awq", "w8a8", "fp8"])
def test_quantized_ranks_are_judged_as_their_checkpoint(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that say that they hold its values; of others it is an open question."""
    source = write_quantized(tmp_path / "source", name)
    (source / "tokenizer.json").write_text(json.dumps(tokenizer_json({"<eos>": 2}, words=64)))
    (source / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    out = cut(source, tmp_path / "out", "vllm", "--tp", "2")
    _, whole, _ = asked(capsys, source, "--tp", "2")
    code, entry, errors = asked(capsys, out, "--tp", "2", "--load-format", "sharded_state")
    assert (code, errors, entry["starts"]) == (0, [], True)
    for key in ("unknowns", "kernels", "quantization"):
        assert entry.get(key) == whole.get(key)
    assert asked(capsys, out, "--tp", "1", "--load-format", "sharded_state")[2] == ["LD003"]
    for path in out.glob("*.safetensors"):
        save_file(load_file(path), path)
    code, entry, errors = asked(capsys, out, "--tp", "2", "--load-format", "sharded_state")
    assert (code, errors) == (3, []) and "repacked" in entry["unknowns"][0]["why"]
    assert asked(capsys, out, "--tp", "1", "--load-format", "sharded_state")[2] == ["LD003"]


def test_ranks_beside_a_config_of_another_format(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = cut(source, tmp_path / "out", "vllm", "--tp", "2")
    config = json.loads((out / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    (out / "config.json").write_text(json.dumps(config))
    code, _, errors = asked(capsys, out, "--tp", "2", "--load-format", "sharded_state")
    assert (code, errors) == (1, ["LD006"])


def test_diff_puts_ranks_together(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for layout in ("vllm", "tensorizer", "mlload"):
        out = cut(source, tmp_path / layout, layout, "--tp", "2")
        assert main(["diff", str(source), str(out)]) == 0, capsys.readouterr().out


def test_inspect_tells_what_the_ranks_are_for(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = cut(source, tmp_path / "out", "mlload", "--tp", "2")
    assert main(["inspect", str(out)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "2 safetensors files of the ranks of tp 2, for mlload alone" in said and "stray" not in said


def test_files_of_two_cuts(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = cut(source, tmp_path / "out", "vllm", "--tp", "1")
    shutil.copy(out / "model-rank-0-part-0.safetensors", out / "model-pp-0-tp-0-part-0.safetensors")
    code, _, errors = asked(capsys, out, "--load-format", "sharded_state")
    assert code == 1 and "FI065" in errors
    assert main(["inspect", str(out)]) == 0


def test_a_tensorizer_file_is_missing(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = cut(source, tmp_path / "out", "tensorizer", "--tp", "2")
    (out / "model-rank-000.tensors").unlink()
    code, entry, errors = asked(capsys, out, "--tp", "2", "--load-format", "tensorizer")
    assert (code, errors) == (1, ["LD006"]) and "rank 0 is missing" in entry["findings"][0]["message"]


def test_the_bytes_of_ranks_are_read(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for layout, loader in (("vllm", "sharded_state"), ("tensorizer", "tensorizer")):
        out = cut(source, tmp_path / layout, layout, "--tp", "2")
        code, entry, _ = asked(capsys, out, "--tp", "2", "--load-format", loader, "--deep")
        assert code in (0, 1) and not any(found["what"].startswith("rule") for found in entry["unknowns"])
        assert entry["deep"]["files"]
