"""A real vLLM on this CPU, driven by `mlload load-test`: what was predicted is what happens.

CI starts it three times here; MLLOAD_ACCEPTANCE=all starts it for every run below.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mlload.cli.app import main
from tests.acceptance.extent import everything
from tests.acceptance.folders import WHOLE, base, cut_file, forget, link
from tests.engine_vllm.processes import gone
from tests.engine_vllm.test_command import sizes
from tests.real_models import RealModel
from tools.vllm_cpu import python, ready

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
NORM = "model.layers.7.input_layernorm.weight"
# 1 GiB a rank, in blocks of 128 tokens: 30 layers x 2 x 3 KV heads x 64 x 2 bytes are 23,040 bytes a token.
SETTINGS = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"}
MEASURED = ("--batch", "1,2", "--prompt-len", "16", "--decode", "4")
ENGINE = ("--enforce-eager", "--max-model-len", "1024")


@dataclass(frozen=True)
class Start:
    """One start of the engine. stored: "bf16" or the method of `mlload quantize`; damage: what is done to a copy;
    kernel: of the linears, as the engine's own objects are called; error: what its refusal must hold."""

    name: str
    stored: str = "bf16"
    tp: int = 1
    kernel: str = "UnquantizedLinearMethod"
    damage: Callable[[Path], Any] | None = None
    error: str = ""
    in_ci: bool = False


INT8 = "CompressedTensorsLinearMethod/CompressedTensorsW8A8Int8/CPUInt8ScaledMMLinearKernel"
FP8 = "CompressedTensorsLinearMethod/CompressedTensorsW8A8Fp8/ChannelWiseTorchFP8ScaledMMLinearKernel"
STARTS = (
    Start("bf16", in_ci=True),
    Start("bf16, three ranks", tp=3),
    Start("INT8", "int8", kernel=INT8),
    Start("INT8, three ranks", "int8", 3, kernel=INT8, in_ci=True),
    Start("FP8", "fp8", kernel=FP8),
    Start("FP8, three ranks", "fp8", 3, kernel=FP8),
    Start("nine heads on two ranks", tp=2, error="attention heads (9)", in_ci=True),
    Start("cut off at nine tenths", damage=lambda folder: cut_file(folder, WHOLE, 0.9), error="SafetensorError"),
    Start("a norm is missing", "sharded", damage=lambda folder: forget(folder, NORM), error=NORM),
)
ASKED = tuple(start for start in STARTS if start.in_ci or everything())
HEALTHY = [start for start in ASKED if not start.error]
REFUSED = [start for start in ASKED if start.error]


@dataclass(frozen=True)
class Answer:
    code: int
    found: dict[str, Any]
    folder: Path
    log: str

    def rows(self, what: str) -> list[dict[str, Any]]:
        return [row for row in self.found["prediction"]["rows"] if row["what"] == what]


@pytest.fixture(scope="session")
def answers(real_model: RealModel, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Answer]:
    if not ready():
        pytest.skip("no vLLM on this machine: python -m tools.vllm_cpu")
    model, scratch = real_model("smollm2"), tmp_path_factory.mktemp("engine")
    return {start.name: ask(start, model, scratch / f"{number}") for number, start in enumerate(ASKED)}


def ask(start: Start, model: Path, scratch: Path) -> Answer:
    folder = stored(start, model, scratch)
    log = scratch.with_suffix(".log")
    command = [
        sys.executable, "-m", "mlload", "load-test", str(folder), "--engine", "vllm", "--vllm-python", str(python()),
        "--tp", str(start.tp), "--engine-log", str(log), "--format", "json", *MEASURED, "--", *ENGINE,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **SETTINGS}, check=False)
    assert done.stdout.startswith("{"), done.stderr
    return Answer(done.returncode, json.loads(done.stdout), folder, log.read_text(errors="replace"))


def stored(start: Start, model: Path, scratch: Path) -> Path:
    """The model as this start is given it; a quantized one is made once for all that want it."""
    if start.stored in ("int8", "fp8"):
        folder = scratch.parent / start.stored
        if not folder.is_dir():
            assert main(["quantize", str(model), "-o", str(folder), "--method", start.stored]) == 0
        return folder
    link(base(model, "sharded" if start.stored == "sharded" else "plain"), scratch)
    if start.damage is not None:
        start.damage(scratch)
    return scratch


@pytest.mark.parametrize("start", HEALTHY, ids=lambda start: start.name)
def test_it_starts_and_speaks_as_predicted(start: Start, answers: Mapping[str, Answer]) -> None:
    answer = answers[start.name]
    assert answer.code == 0, answer.found["failures"]
    assert answer.found["speaks"]["ok"] is True and "Paris" in answer.found["sample"]
    differ = [row for row in answer.found["prediction"]["rows"] if row["agrees"] is False]
    assert differ == []
    assert answer.rows("verdict")[0]["agrees"] is True


@pytest.mark.parametrize("start", HEALTHY, ids=lambda start: start.name)
def test_tokens_of_the_cache_are_predicted_exactly(start: Start, answers: Mapping[str, Answer]) -> None:
    (row,) = answers[start.name].rows("kv_tokens")
    expected = 2**30 // (128 * 23040 // start.tp) * 128
    assert row["predicted"] == row["measured"] == expected
    assert expected == {1: 46592, 3: 139776}[start.tp]


@pytest.mark.parametrize("start", HEALTHY, ids=lambda start: start.name)
def test_bytes_of_every_rank(start: Start, answers: Mapping[str, Answer]) -> None:
    answer = answers[start.name]
    rows = answer.rows("weight_bytes")
    assert [row["where"] for row in rows] == [f"rank {rank}" for rank in range(start.tp)]
    if start.stored == "bf16":
        # The engine allocates what the plan says, to the byte; on one rank that is every byte of the file.
        assert all(row["difference"] == 0 for row in rows)
        if start.tp == 1:
            assert rows[0]["measured"] == sum(sizes(answer.folder)) == answer.found["bytes_read"]
    for rank in answer.found["ranks"]:
        assert rank["kv_bytes"] <= 2**30 < rank["kv_bytes"] + 128 * 23040


@pytest.mark.parametrize("start", HEALTHY, ids=lambda start: start.name)
def test_kernels_by_the_engines_own_names(start: Start, answers: Mapping[str, Answer]) -> None:
    rows = {row["where"]: row for row in answers[start.name].rows("kernel")}
    for layer in ("QKVParallelLinear[qkv_proj]", "RowParallelLinear[down_proj]"):
        assert rows[layer]["predicted"] == rows[layer]["measured"] == start.kernel


@pytest.mark.parametrize("start", HEALTHY, ids=lambda start: start.name)
def test_it_was_measured(start: Start, answers: Mapping[str, Answer]) -> None:
    found = answers[start.name].found
    assert [pace["batch"] for pace in found["sweep"]] == [1, 2]
    for pace in found["sweep"]:
        assert (pace["prompt_len"], pace["decode"]) == (16, 4)
        assert pace["prefill_tokens_per_s"] > 0 and pace["decode_tokens_per_s"] > 0 and pace["first_token_ms"] > 0
    assert 0 < found["load_seconds"] < found["start_seconds"]


@pytest.mark.parametrize("start", REFUSED, ids=lambda start: start.name)
def test_a_refusal_is_predicted_and_told_in_one_line(start: Start, answers: Mapping[str, Answer]) -> None:
    answer = answers[start.name]
    assert answer.code == 1 and answer.found["starts"] is False
    assert start.error in answer.found["error"] and "\n" not in answer.found["error"]
    assert "See root cause" not in answer.found["error"]
    (row,) = answer.rows("verdict")
    assert (row["predicted"], row["measured"], row["agrees"]) == ("refuses", "refuses", True), row
    assert answer.found["failures"] == [f"it does not start: {answer.found['error']}"]


@pytest.mark.parametrize("start", ASKED, ids=lambda start: start.name)
def test_nothing_of_it_is_left(start: Start, answers: Mapping[str, Answer]) -> None:
    log = answers[start.name].log
    pids = {int(pid) for pid in re.findall(r"\(\w+ pid=(\d+)\)", log)}
    assert pids and gone(list(pids))
    for name in set(re.findall(r"vllm_dist_[0-9a-f]{32}", log)):
        assert list(Path("/dev/shm").glob(f"{name}*")) == []
