"""Healthy checkpoints at the sizes that their publishers serve: no rule on config, tensors or names has a word."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlload import profiles
from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import Finding, MlloadError
from mlload.plan.mesh import Mesh
from mlload.plan.model import read_model
from mlload.plan.plan import make_plan
from mlload.validators import rules
from mlload.validators.context import Context, Request
from tests.skeletons import Skeleton

NAMES = (
    "deepseek-v3",
    "gpt-oss-120b",
    "llama-3.1-405b",
    "mixtral-8x7b-gptq",
    "qwen2.5-72b-awq",
    "qwen3-235b-a22b-fp8",
)
FAMILIES = ("CF", "TN", "QT", "NM")


def words(folder: Path) -> list[Finding]:
    """What is found beyond remarks, by the rules that look at config, tensors and names."""
    model = read_model(Checkpoint.open(str(folder)))
    context = Context(model, make_plan(model, profiles.load("vllm", "0.33"), Mesh()), Request())
    mine = [rule for rule in rules.all_rules() if rule.code.startswith(FAMILIES)]
    found, broken = rules.run(context, mine)
    assert broken == []
    return [one for one in (*model.findings, *found) if one.severity != "info"]


@pytest.mark.parametrize("name", NAMES)
def test_skeletons(skeleton: Skeleton, name: str) -> None:
    assert words(skeleton(name)) == []


def test_published_configs() -> None:
    """Without weights. The one finding: a quantization that stands in a side file alone."""
    root = os.environ.get("MLLOAD_TRUTH")
    if not root:
        pytest.skip("MLLOAD_TRUTH is unset: published configs are not part of the repository")
    found: dict[str, list[str]] = {}
    for folder in sorted(Path(root, "configs").iterdir()):
        try:
            codes = [one.code for one in words(folder)]
        except MlloadError:
            continue
        if codes:
            found[folder.name] = codes
    assert list(found.values()) == [["QT002"]]
