"""Without --gpu: a verdict for a GPU that most people rent, and one row a generation that does not change it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Run
from tests.cli.test_validate import validated

BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
# Experts 1536 wide are 192 a rank at tp 8, and 192 % 128 = 64.
MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 4096,
    "moe_intermediate_size": 1536,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
    "quantization_config": BLOCKS,
}


def folder(at: Path, config: dict[str, object]) -> Path:
    (at / "config.json").write_text(json.dumps(config))
    return at


def test_case_106_a_refined_grid_fails_on_older_gpus_only(mlload: Run, tmp_path: Path) -> None:
    """The verdict is ok, because it is for 9.0; T4 and A100 are told to refuse, with the code that --gpu gives."""
    (result,) = validated(mlload, folder(tmp_path, MOE), "--tp", "8", code=0)["results"]
    assert (result["starts"], result["judged_for"]) == (True, "cc:9.0")
    starts = {row["gpu"]: row["starts"] for row in result["generations"]}
    assert starts == {"t4": False, "a100": False, "l40s": True, "h100": True, "b200": True}
    (there,) = validated(mlload, tmp_path, "--tp", "8", "--gpu", "a100", code=1)["results"]
    errors = {finding["code"] for finding in there["findings"] if finding["severity"] == "error"}
    row = next(row for row in result["generations"] if row["gpu"] == "a100")
    assert set(row["codes"]) == {code for code in errors if not code.startswith("ME")}
    assert there["generations"] == []


def test_what_no_gpu_changes_is_in_every_row(mlload: Run, tmp_path: Path) -> None:
    """32 heads on 5 ranks."""
    (result,) = validated(mlload, folder(tmp_path, MOE), "--tp", "5", code=1)["results"]
    assert {row["starts"] for row in result["generations"]} == {False}
    assert all("TP001" in row["codes"] for row in result["generations"])


def test_a_dtype_decides_by_generation(mlload: Run, tmp_path: Path) -> None:
    plain = {key: value for key, value in MOE.items() if key != "quantization_config"}
    (result,) = validated(mlload, folder(tmp_path, plain), "--dtype", "bfloat16", code=0)["results"]
    assert [row["starts"] for row in result["generations"]] == [False, True, True, True, True]
    assert result["generations"][0]["codes"] == ["EN015"]


def test_no_gpu_starts_a_command_line_that_the_engine_refuses(mlload: Run, tmp_path: Path) -> None:
    line = ("vllm", "serve", str(folder(tmp_path, MOE)), "-tp", "8", "--flag-of-nobody")
    (result,) = json.loads(mlload("validate", "--format", "json", "--", *line).stdout)["results"]
    assert {row["starts"] for row in result["generations"]} == {False}
    assert {row["codes"][0] for row in result["generations"]} == {"EN050"}
    # An older GPU's own reasons stay beside it: 192 % 128 = 64.
    assert [len(row["codes"]) > 1 for row in result["generations"]] == [True, True, False, False, False]


def test_several_sizes_are_columns(mlload: Run, tmp_path: Path) -> None:
    """Experts 1536 wide are 768 a rank at tp 2, a multiple of 128; 192 at tp 8 is none; 32 heads do not divide by 5."""
    done = mlload("validate", folder(tmp_path, MOE), "--tp", "2,5,8")
    lines = done.stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("GPU "))
    assert lines[at].split() == ["GPU", "capability", "tp", "2", "tp", "5", "tp", "8"]
    rows = {line.split()[-4]: line.split()[-3:] for line in lines[at + 1 : at + 6]}
    assert rows["8.0"] == ["yes", "no", "no"] and rows["9.0"] == ["yes", "no", "yes"]
    assert "GPU  " not in mlload("validate", tmp_path, "--tp", "2,8", "--gpu", "h100").stdout
