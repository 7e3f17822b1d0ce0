"""The forecast of memory is what a run takes, or a little more."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.plan.model import read_model
from mlload.quantize import memory
from mlload.quantize.recipe import make_recipe
from mlload.quantize.targets import find_targets
from tests.quantize.tiny import GROUP, config, write

WORDS = {
    "fp8": ["--method", "fp8"],
    "rtn": ["--method", "rtn"],
    "gptq": ["--method", "gptq", "--samples", "8", "--seq-len", "64"],
    "awq": ["--method", "awq", "--samples", "8", "--seq-len", "64"],
}


def held(pid: int) -> int:
    """RssAnon + RssShmem in bytes."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


@pytest.mark.slow
@pytest.mark.parametrize("method", WORDS)
def test_the_forecast_bounds_the_peak(method: str, demo: Path, tmp_path: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("memory is read from /proc")
    command = [sys.executable, "-m", "mlload", "quantize", str(demo), "-o", str(tmp_path / "out"), *WORDS[method]]
    child = subprocess.Popen([*command, "--no-check", "--format", "json"], stdout=subprocess.PIPE, text=True)
    peak = 0
    while child.poll() is None:
        peak = max(peak, held(child.pid))
        time.sleep(0.005)
    assert child.returncode == 0 and child.stdout is not None
    expected = json.loads(child.stdout.read())["forecast"]["memory_bytes"]
    assert 0.7 * expected <= peak <= 1.05 * expected


def test_less_memory_is_fewer_threads() -> None:
    recipe = make_recipe("rtn")
    most, threads = memory.data_free((), recipe)
    assert threads >= 2
    less, fewer = memory.data_free((), recipe, most - 1)
    assert fewer == threads - 1 and less < most
    # One thread is the least: what that takes is told, and refused by who asked.
    assert memory.data_free((), recipe, 1)[1] == 1


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_experts_count_one_by_one(method: str, tmp_path: Path) -> None:
    recipe = make_recipe(method, group_size=GROUP)

    def needed(name: str, **fields: int) -> int:
        write(tmp_path / name, config("qwen3_moe", **fields))
        return memory.calibrated(
            find_targets(read_model(Checkpoint.open(str(tmp_path / name))), recipe).targets, recipe, 1
        )

    few, wide = needed("few"), needed("wide", moe_intermediate_size=1024)
    assert needed("many", num_experts=64) == few
    # gate, up and down of one expert, hidden size 64, 32 and 1,024 wide: held once at least, in float32.
    assert wide - few >= 4 * 3 * 64 * (1024 - 32)
