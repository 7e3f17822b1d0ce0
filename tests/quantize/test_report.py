"""The report: what was planned against what was done, errors by arithmetic, everything kept by its rule."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from mlload.cli.app import main
from mlload.quantize.report_lines import alike
from mlload.quantize.stream import Sheets
from tests.quantize.conftest import Run
from tests.quantize.tiny import GROUP, config, dequantized, text, write

pytestmark = pytest.mark.transformers


def options(data: Path, method: str = "gptq") -> tuple[Any, ...]:
    shape = ("--samples", 8, "--seq-len", 32)
    return ("--method", method, "--group-size", GROUP, "--save-as", "compressed-tensors", "--calib", data, *shape)


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    """A model with a draft layer, and a table that its class has no place for."""
    folder = tmp_path / "model"
    write(folder, config("deepseek_v3", num_nextn_predict_layers=1))
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    last = {name: tensor.clone() for name, tensor in tensors.items() if name.startswith("model.layers.2.")}
    tensors |= {name.replace("layers.2.", "layers.3."): tensor for name, tensor in last.items()}
    tensors |= {f"model.layers.3.{name}.weight": torch.ones(64) for name in ("enorm", "hnorm", "shared_head.norm")}
    tensors["model.layers.3.eh_proj.weight"] = torch.ones(64, 128)
    tensors["model.layers.3.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.3.shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    return folder


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_draft_layers_and_strangers_are_kept_and_listed(draft: Path, tmp_path: Path, run: Run, method: str) -> None:
    before = safetensors.torch.load_file(draft / "model.safetensors")
    code, result = run(draft, "-o", tmp_path / "out", *options(text(tmp_path / "text.txt"), method))
    assert code == 0, result
    after = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
    rules = result["kept_tensors"]
    drafts = {name for name in before if name.startswith("model.layers.3.")}
    assert set(rules["a draft layer (multi-token prediction)"]) == drafts
    assert rules["no weight of the model class"] == ["model.layers.0.self_attn.rotary_emb.inv_freq"]
    for names in rules.values():
        for name in names:
            assert torch.equal(after[name], before[name])
    page = (tmp_path / "out.quantize.md").read_text()
    assert all(f"- {name}\n" in page for names in rules.values() for name in names)


def test_draft_layers_of_a_class_without_any_are_kept(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "model"
    write(folder, config("qwen3", num_nextn_predict_layers=1))
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    more = {
        name.replace("layers.2.", "layers.3."): tensor.clone() for name, tensor in tensors.items() if "s.2." in name
    }
    safetensors.torch.save_file(tensors | more, path, {"format": "pt"})
    code, result = run(folder, "-o", tmp_path / "out", *options(text(tmp_path / "text.txt")))
    assert code == 0, result
    assert set(result["kept_tensors"]["of a layer beyond those that the config counts"]) == set(more)
    assert result["layers"] == 3 * 7


def test_errors_of_weights_are_those_of_the_files(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "model"
    write(folder, config("llama"))
    code, result = run(folder, "-o", tmp_path / "out", *options(text(tmp_path / "text.txt")))
    assert code == 0
    before = safetensors.torch.load_file(folder / "model.safetensors")
    after = dequantized(tmp_path / "out")
    assert len(result["linears"]) == 3 * 7
    for linear in result["linears"]:
        name = f"{linear['path']}.weight"
        error = float((after[name] - before[name]).norm() / before[name].norm())
        assert linear["weight_error"] == pytest.approx(error, rel=1e-3)
        assert linear["quantized"] and 0 < linear["output_error"] < error
        assert linear["scheme"]["bits"] == 4 and linear["scheme"]["group_size"] == GROUP


def test_a_layer_that_was_not_written_is_exit_1(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    write(folder, config("llama"))
    put = Sheets.put_packed
    lost = "model.layers.1.mlp.up_proj"

    def forgetful(self: Sheets, target: Any, *values: Any) -> None:
        if target.path != lost:
            put(self, target, *values)

    monkeypatch.setattr(Sheets, "put_packed", forgetful)
    code, result = run(folder, "-o", tmp_path / "out", *options(text(tmp_path / "text.txt")))
    assert code == 1 and result["exit_code"] == 1
    assert any(lost in problem for problem in result["check"]["problems"])


def test_what_no_engine_starts_is_refused_before_work(tmp_path: Path, run: Run) -> None:
    """Experts of 8 bits with zero points: no kernel takes them."""
    folder = tmp_path / "model"
    write(folder, config("mixtral"))
    scheme = ("--bits", 8, "--asym", "--group-size", GROUP, "--save-as", "compressed-tensors")
    for method in ("rtn", "gptq"):
        data = ("--calib", text(tmp_path / "text.txt"), "--samples", 8, "--seq-len", 32)
        words = data if method == "gptq" else ()
        code, result = run(folder, "-o", tmp_path / "out", "--method", method, *scheme, *words)
        assert code == 1 and "KN002" in result["error"] and "int8_asym" in result["error"]
        assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()
    code, _ = run(folder, "-o", tmp_path / "out", "--method", "rtn", *scheme[:2], "--sym", *scheme[3:])
    assert code == 0


def test_the_screen_is_80_wide_and_says_the_answer_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("model"), config("qwen3_moe"))
    data = options(text(Path("text.txt")), "awq")
    assert main(["quantize", "model", *map(str, data), "--eval-samples", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "model  quantized 48 linears to 4-bit integers, groups of 32"
    assert max(map(len, lines)) <= 80
    said = " ".join(" ".join(lines).split())
    assert "of weights" in said and "of outputs" in said
    assert "12 experts in 3 layers, each on the tokens that chose it" in said
    assert "perplexity" in said and "KL" in said and "as planned" in said
    assert lines[-1].strip() == "next: mlload validate model-awq"
    quality = json.loads(Path("model-awq.quantize.json").read_text())["quality"]
    # Two chunks of 32, each token but the first is foretold.
    assert quality["tokens"] == 2 * 31 and quality["kl"] > 0


@pytest.mark.parametrize(("typed", "named"), [((), ""), (("--tp", "2"), " --tp 2"), (("-tp", "1,2"), " --tp 1,2")])
def test_the_next_command_asks_for_the_same_sizes(
    typed: tuple[str, ...],
    named: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("my model"), config("llama"))
    assert main(["quantize", "my model", "--method", "fp8", *typed]) == 0
    last = capsys.readouterr().out.splitlines()[-1].strip()
    assert last == f"next: mlload validate 'my model-fp8'{named}"
    assert main(shlex.split(last.removeprefix("next: mlload "))) == 0


def test_notes_that_differ_in_numbers_are_told_once() -> None:
    notes = (*(f"model.layers.{i}.fc: left at 1" for i in range(12)), "something else")
    assert list(alike(notes)) == ["model.layers.0.fc: left at 1 (and 11 more like it)", "something else"]
