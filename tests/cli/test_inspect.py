"""`mlload inspect` on checkpoints whose figures follow from arithmetic by hand."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.cli.conftest import CONFIG, Run, llama_shapes, write_llama, write_safetensors

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / "inspect-1.json").read_text())

# The small Llama by hand: hidden 96, 6 heads and 2 KV heads of 16, MLP 256, 2 layers, vocabulary 1024.
ATTENTION = 96 * 96 + 2 * 32 * 96 + 96 * 96
MLP = 3 * 256 * 96
NORMS = 2 * 2 * 96 + 96
TABLE = 1024 * 96
PARAMETERS = 2 * (ATTENTION + MLP) + NORMS + 2 * TABLE


def inspected(mlload: Run, *words: str | Path) -> dict[str, Any]:
    done = mlload("inspect", *words, "--format", "json")
    document: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMA)
    return document


def test_figures_of_a_plain_model(mlload: Run, llama: Path) -> None:
    shown = inspected(mlload, llama)
    assert shown["architecture"]["class"] == "LlamaForCausalLM"
    assert shown["architecture"]["parameters"] == {"total": PARAMETERS, "active": PARAMETERS, "draft": 0}
    assert shown["quantization"] is None and shown["problems"] == []
    assert {share["name"]: share["nbytes"] for share in shown["bytes"]["shares"]} == {
        "mlp": 2 * 2 * MLP,
        "attention": 2 * 2 * ATTENTION,
        "embedding": 2 * TABLE,
        "head": 2 * TABLE,
        "norm": 2 * NORMS,
    }
    (rank,) = shown["plan"]["ranks"]
    assert rank["disk_bytes"] == rank["weight_bytes"] == 2 * PARAMETERS
    assert rank["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 2  # layers, k and v, KV heads, head_dim, bfloat16
    assert shown["files"]["tokenizer"] == "tokenizer.json"
    assert shown["files"]["chat_template"] == "tokenizer_config.json"


def test_ranks_at_two_by_two(mlload: Run, llama: Path) -> None:
    shown = inspected(mlload, llama, "--tp", "2", "--pp", "2")
    plan = shown["plan"]
    assert (plan["tp"], plan["pp"], plan["stages"]) == (2, 2, [1, 1])
    layer = (ATTENTION + MLP) // 2 + 2 * 96
    first, last = layer + TABLE // 2, layer + TABLE // 2 + 96
    assert [rank["weight_bytes"] for rank in plan["ranks"]] == [2 * first, 2 * first, 2 * last, 2 * last]
    assert [rank["rank"] for rank in plan["ranks"]] == [0, 1, 2, 3]


def test_sizes_that_do_not_work_are_marked(mlload: Run, llama: Path) -> None:
    sizes = {entry["tp"]: entry for entry in inspected(mlload, llama)["sizes"]}
    assert [tp for tp, entry in sizes.items() if entry["works"]] == [1, 2]
    assert sizes[4]["codes"] == ["TP001"]
    text = mlload("inspect", llama).stdout
    assert "6 % 4 = 2" in text
    row = next(line for line in text.splitlines() if line.startswith("works"))
    assert row.split() == ["works", "yes", "yes", "no", "no"]


def test_the_screen_fits(mlload: Run, llama: Path) -> None:
    lines = mlload("inspect", llama).stdout.splitlines()
    assert lines[0].startswith("small-llama  LlamaForCausalLM, ")
    assert len(lines) <= 24 and max(map(len, lines)) <= 80


def test_tensors(mlload: Run, llama: Path) -> None:
    rows = {row["name"]: row for row in inspected(mlload, llama, "--tensors", "*layers.0.*")["tensors"]}
    assert set(rows) == {name for name in llama_shapes(CONFIG) if ".layers.0." in name}
    assert rows["model.layers.0.mlp.down_proj.weight"]["cut"] == "dim 1"
    assert rows["model.layers.0.mlp.up_proj.weight"]["cut"] == "dim 0"
    assert rows["model.layers.0.self_attn.q_proj.weight"]["cut"] == "dim 0 by 16"
    assert rows["model.layers.0.input_layernorm.weight"]["cut"] == "whole"


def test_no_such_tensors(mlload: Run, llama: Path) -> None:
    done = mlload("inspect", llama, "--tensors", "nothing*")
    assert (done.returncode, done.stdout) == (0, "no tensor is called like nothing*\n")


@pytest.mark.parametrize("words", [("--tensors",), ("--tensors", "*"), ("--tensors=*",)])
def test_all_tensors(mlload: Run, llama: Path, words: tuple[str, ...]) -> None:
    done = mlload("inspect", llama, *words)
    assert len([line for line in done.stdout.splitlines() if ".weight " in line]) == len(llama_shapes(CONFIG))
    assert len(mlload("inspect", *words, llama).stdout.splitlines()) == len(done.stdout.splitlines())


def test_config_only(mlload: Run, llama: Path) -> None:
    (llama / "model.safetensors").unlink()
    shown = inspected(mlload, llama)
    assert shown["plan"]["ranks"][0]["weight_bytes"] == 2 * PARAMETERS
    assert "no weights here" in mlload("inspect", llama).stdout


def test_a_truncated_file_is_a_problem_not_a_crash(mlload: Run, llama: Path) -> None:
    weights = llama / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    shown = inspected(mlload, llama)
    assert any(problem["severity"] == "error" and "100" in problem["message"] for problem in shown["problems"])


def test_hostile_names_do_not_reach_the_terminal(mlload: Run, tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "hostile")
    shapes = {**llama_shapes(CONFIG), "evil\x1b]0;owned\x07\x1b[2J": (2,), "<script>alert(1)</script>": (3,)}
    write_safetensors(folder / "model.safetensors", shapes)
    page = tmp_path / "page.html"
    done = mlload("inspect", folder, "--html", page)
    assert "\x1b" not in done.stdout and "\x07" not in done.stdout
    assert "<script>" not in page.read_text()
    assert "\x1b" not in mlload("inspect", folder, "--tensors").stdout


def test_a_lying_header_length(mlload: Run, llama: Path) -> None:
    (llama / "model.safetensors").write_bytes(struct.pack("<Q", 2**62) + b"{}")
    done = mlload("inspect", llama)
    assert "Traceback" not in done.stderr and done.returncode in (0, 3)
    assert "error" in done.stdout


def test_the_page_stands_alone(mlload: Run, llama: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert mlload("inspect", llama, "--html", page, "--tp", "2").returncode == 0
    text = page.read_text()
    assert "http" not in text and "<script" not in text and "url(" not in text
    assert "ranks 0-1, each" in text and "prefers-color-scheme: dark" in text


def test_a_page_that_cannot_be_written(mlload: Run, llama: Path) -> None:
    done = mlload("inspect", llama, "--html", llama / "no" / "such" / "page.html")
    assert done.returncode == 2 and "cannot write" in done.stderr


def test_unknown_architecture_without_weights(mlload: Run, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "config.json").write_text(json.dumps({"model_type": "never_heard_of"}))
    done = mlload("inspect", tmp_path / "x")
    assert done.returncode == 3 and "never_heard_of" in done.stdout and "Traceback" not in done.stderr


def test_an_adapter_is_no_model(mlload: Run, tmp_path: Path) -> None:
    folder = tmp_path / "lora"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base", "r": 16}))
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    write_safetensors(folder / "adapter_model.safetensors", {name: (16, 96)})
    shown = inspected(mlload, folder)
    assert shown["format"] == "adapter" and shown["plan"] is None and shown["sizes"] == []
    assert mlload("inspect", folder).stdout.startswith("lora  LoRA adapter for org/base, rank 16, ")
    assert mlload("validate", folder).returncode == 1


def test_assumed_quantization(mlload: Run, llama: Path) -> None:
    (llama / "model.safetensors").unlink()
    shown = inspected(mlload, llama, "--assume-quant", "awq:g32")
    assert shown["quantization"]["method"] == "awq" and shown["quantization"]["group_size"] == 32
    # 4 bits, and per group of 32 a 4-bit zero and a 16-bit scale.
    assert shown["quantization"]["effective_bits"] == pytest.approx(4 + (4 + 16) / 32)
    done = mlload("inspect", llama, "--assume-quant", "nonsense")
    assert done.returncode == 2 and "unknown quantization 'nonsense'" in done.stderr
