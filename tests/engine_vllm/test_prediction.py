"""What is predicted for vLLM on a CPU: tokens of its cache by hand, kernels by name, verdicts by the same rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlload.checkpoint.finding import Finding
from mlload.engine.vllm.prediction import Prediction, Question, predict
from mlload.plan.mesh import Mesh
from mlload.validators.context import Request
from tests.writer.build import WIDE, write_checkpoint, write_quantized

CPU: dict[str, Any] = {"device": "cpu", "name": "cpu", "capability": None, "flags": {"amx": False, "zentorch": False}}
H100: dict[str, Any] = {
    "device": "cuda",
    "name": "NVIDIA H100",
    "capability": [9, 0],
    "memory": 80 * 2**30,
    "flags": {},
}
# 2 KV heads of 128, key and value, 2 bytes: one layer.
TOKEN = 2 * 2 * 128 * 2


def question(folder: Path, **more: Any) -> Question:
    fields: dict[str, Any] = {
        "source": str(folder), "revision": None, "version": "0.32.0", "mesh": Mesh(), "request": Request(),
        "platform": CPU, "flags": {}, "variables": {"VLLM_CPU_KVCACHE_SPACE": "1"},
    }  # fmt: skip
    return Question(**{**fields, **more})


def of_kernels(found: Prediction) -> list[Finding]:
    """Errors about kernels; the folders of these tests have no tokenizer that reads."""
    return [finding for finding in found.errors if finding.code.startswith("KN")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("wide") / "m", {**WIDE, "max_position_embeddings": 1024})


def test_tokens_of_a_cpus_cache(folder: Path) -> None:
    found = predict(question(folder))
    # Blocks of 128 tokens out of 1 GiB.
    assert found.tokens == (2**30 // (128 * TOKEN) * 128,) * 2
    # A KV head on each of two ranks: half the bytes a token, twice the tokens.
    assert predict(question(folder, mesh=Mesh(tp=2))).tokens == (2 * 2**30 // (128 * TOKEN) * 128,) * 2


def test_tokens_are_counted_in_longest_requests(folder: Path) -> None:
    """A request of 1000 tokens takes 8 blocks, so the last 24 tokens of each are nobody's."""
    blocks = 2**30 // (128 * TOKEN)
    found = predict(question(folder, request=Request(max_model_len=1000)))
    assert found.tokens == (int(blocks / 8 * 1000),) * 2


def test_where_the_size_of_a_cache_is_named(folder: Path) -> None:
    flags = {"kv-cache-memory-bytes": 2**28}
    assert predict(question(folder, flags=flags, variables={})).tokens == (2**28 // (128 * TOKEN) * 128,) * 2
    # On a CPU the variable wins.
    assert predict(question(folder, flags=flags)).tokens == predict(question(folder)).tokens
    # A GPU has blocks of 16, and no such variable.
    found = predict(question(folder, flags=flags, platform=H100))
    assert found.tokens == (2**28 // (16 * TOKEN) * 16,) * 2
    assert (
        predict(question(folder, flags={"block-size": 32}, variables={"VLLM_CPU_KVCACHE_SPACE": "1"})).tokens
        == (2**30 // (32 * TOKEN) * 32,) * 2
    )


def test_where_it_is_not_named(folder: Path) -> None:
    found = predict(question(folder, variables={}))
    assert found.tokens is None and "VLLM_CPU_KVCACHE_SPACE" in found.tokens_missing
    gpu = predict(question(folder, variables={}, platform=H100))
    assert gpu.tokens is not None and 0 < gpu.tokens.low < gpu.tokens.high


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("w8a8", "CompressedTensorsLinearMethod/CompressedTensorsW8A8Int8/CPUInt8ScaledMMLinearKernel"),
        ("w4a16", "CompressedTensorsLinearMethod/CompressedTensorsWNA16/CPUWNA16LinearKernel"),
    ],
)
def test_kernels_of_a_cpu(name: str, label: str, tmp_path: Path) -> None:
    found = predict(question(write_quantized(tmp_path / name, name)))
    assert {choice.label for choice in found.kernels if "proj" in choice.layers} == {label}
    assert of_kernels(found) == []


def test_a_format_that_no_cpu_without_tiles_runs(tmp_path: Path) -> None:
    folder = write_quantized(tmp_path / "m", "fp8-block")
    found = predict(question(folder))
    assert found.verdict is not None and found.verdict.starts is False
    assert {finding.code for finding in of_kernels(found)} == {"KN001"}
    assert "AMX" in of_kernels(found)[0].message
    assert of_kernels(predict(question(folder, platform={**CPU, "flags": {"amx": True}}))) == []


def test_bytes_are_the_plans(folder: Path) -> None:
    one, two = predict(question(folder)), predict(question(folder, mesh=Mesh(tp=2)))
    assert [rank["rank"] for rank in two.ranks] == [0, 1]
    assert sum(rank["weight_bytes"] for rank in two.ranks) > one.ranks[0]["weight_bytes"]
    assert one.ranks[0]["kv_bytes_per_token"] == TOKEN


def test_a_version_without_a_profile_is_said(folder: Path) -> None:
    found = predict(question(folder, version="0.7.3"))
    assert found.verdict is None and "0.7.3" in found.missing


def test_a_source_that_is_none(tmp_path: Path) -> None:
    found = predict(question(tmp_path / "nowhere"))
    assert found.verdict is None and "nowhere" in found.missing


def test_a_size_that_is_refused(folder: Path) -> None:
    found = predict(question(folder, mesh=Mesh(tp=3)))
    assert found.verdict is not None and found.verdict.starts is False
    assert any("% 3" in finding.message for finding in found.errors)
