"""Configs and skeletons of well-known checkpoints: named rightly, and nothing to say about healthy ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.quant.formats import detect
from tests import truth_rows
from tests.quant.checkpoints import checkpoint
from tests.skeletons import Skeleton
from tools.skeleton import write_skeleton

# What vLLM 0.33 calls a method -> what configs call it.
ENGINE_NAMES = {
    "auto_awq": {"awq"},
    "auto_gptq": {"gptq"},
    "inc": {"auto-round"},
    "gpt_oss_mxfp4": {"mxfp4"},
    # Claimed by the algorithm; the block itself says "modelopt".
    "modelopt_fp4": {"modelopt_fp4", "modelopt"},
}


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    files = {file.name: json.loads(file.read_text()) for file in folder.glob("*.json")}
    return files.pop("config.json"), files


def agrees(row: truth_rows.Row) -> bool:
    config, side_files = read(truth_rows.folder(row))
    quant, findings = detect(checkpoint(config, side_files=side_files))
    if row["quant"] is None:
        # Whatever vLLM overlooks is a finding that says so.
        return quant is None or any(f.code in ("QT002", "QT003") for f in findings)
    return quant is not None and not findings and quant.method in ENGINE_NAMES.get(row["quant"], {row["quant"]})


def by_config(rows: tuple[truth_rows.Row, ...]) -> dict[str, truth_rows.Row]:
    """One row each, of those whose config vLLM got as far as resolving."""
    return {row["config"]: row for row in rows if row["verdict"] == "ok"}


def test_methods_as_vllm_resolves_them() -> None:
    rows = by_config(truth_rows.own_rows())
    assert len(rows) > 40
    assert [name for name, row in rows.items() if not agrees(row)] == []


@pytest.mark.truth
def test_methods_of_published_configs() -> None:
    rows = by_config(truth_rows.public_rows())
    assert len(rows) > 30
    assert [name for name, row in rows.items() if not agrees(row)] == []


@pytest.mark.parametrize(
    ("name", "method", "layouts"),
    [
        ("llama-3.1-405b", None, set()),
        ("qwen3-235b-a22b-fp8", "fp8", {"block"}),
        ("gpt-oss-120b", "mxfp4", {"gpt_oss"}),
        ("qwen2.5-72b-awq", "awq", {"gemm"}),
        ("mixtral-8x7b-gptq", "gptq", {"gptq"}),
        pytest.param("deepseek-v3", "fp8", {"block"}, marks=pytest.mark.slow),
    ],
)
def test_skeletons(skeleton: Skeleton, name: str, method: str | None, layouts: set[str]) -> None:
    quant, findings = detect(Checkpoint.open(str(skeleton(name))))
    assert findings == ()
    assert (quant.method if quant else None) == method
    assert {scheme.layout for scheme in quant.schemes} == layouts if quant else not layouts


QUANTIZED = sorted(
    folder.name
    for folder in (truth_rows.OURS / "configs").iterdir()
    if json.loads((folder / "config.json").read_text()).get("quantization_config")
)


@pytest.mark.parametrize("name", QUANTIZED)
def test_tensors_say_what_the_config_says(name: str, tmp_path: Path) -> None:
    """One layer written as the config declares it: its tensors give the same schemes, and no complaint."""
    config, _ = read(truth_rows.OURS / "configs" / name)
    one = {**config, "num_hidden_layers": 1}
    declared, _ = detect(checkpoint(one))
    write_skeleton(one, tmp_path / name)
    stored, findings = detect(Checkpoint.open(str(tmp_path / name)))
    assert declared is not None and stored is not None
    assert stored.schemes == declared.schemes and stored.method == declared.method
    assert [f.code for f in findings if f.severity != "info"] == []
