"""The scripts for a GPU, on the CPU: small shapes in the interpreter, clocks that call once and return a number."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import correctness, load_test, speed, timing
from mlload.kernels.triton import configs
from mlload.kernels.triton.w8a8_linear import Fp8, Int8
from mlload.plan.model import read_model
from tests.kernels import linears

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(correctness, "DEVICE", "cpu")
    monkeypatch.setattr(correctness, "ROWS", (1, 5))
    monkeypatch.setattr(speed, "DEVICE", "cpu")
    monkeypatch.setattr(speed, "ROWS", (1, 4))
    monkeypatch.setattr(speed, "MOE_TOKENS", (1, 3))
    monkeypatch.setattr(timing, "seconds", once)
    monkeypatch.setattr(timing, "copies", lambda nbytes: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: (9, 0))
    monkeypatch.setenv("MLLOAD_CACHE", str(tmp_path))


def once(calls: Sequence[Callable[[], object]]) -> float:
    for call in calls[:2]:
        call()
    return 1e-3


def test_the_checks_pass_and_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = linears.grouped("gptq", group=32, act_order=True)
    correctness.weight_only(scheme, 72, 128, torch.bfloat16)
    correctness.eight_bits(Fp8, linears.FP8_BLOCK, 64, 128)
    correctness.eight_bits(Int8, linears.INT8, 64, 128)
    right = correctness.launch.matmul
    monkeypatch.setattr(correctness.launch, "matmul", lambda *a, **k: right(*a, **k) + 0.25)
    with pytest.raises(AssertionError, match="times the bound"):
        correctness.weight_only(scheme, 72, 128, torch.bfloat16)


def test_checks_dealt_out_to_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that dies leaves its checks unfinished, which is wrong."""
    made: dict[str, Callable[[], None]] = {"right": lambda: None, "wrong": lambda: 1 / 0, "lost": lambda: None}  # type: ignore[dict-item,return-value]
    monkeypatch.setattr(correctness, "checks", lambda: made)
    monkeypatch.setenv("OUT", str(tmp_path))
    assert list(correctness.run(1, 2)) == ["wrong"]

    class Worker:
        def __init__(self, command: list[str]) -> None:
            part, _, parts = command[-1].partition("/")
            if part != "2":
                (tmp_path / f"correctness.{part}.json").write_text(json.dumps(correctness.run(int(part), int(parts))))

        def wait(self, seconds: float) -> None:
            pass

    monkeypatch.setattr(correctness.subprocess, "Popen", Worker)
    outcomes = {name: found["outcome"] for name, found in correctness.dealt_out(3, 5).items()}
    assert outcomes == {"right": "ok", "wrong": "ZeroDivisionError: division by zero", "lost": "not finished"}
    assert not list(tmp_path.glob("correctness.*.json"))


def test_checks_that_are_cut_off_leave_what_they_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def cut() -> None:
        raise SystemExit("stopped from outside")

    monkeypatch.setattr(correctness, "checks", lambda: {"right": lambda: None, "long": cut})
    with pytest.raises(SystemExit):
        correctness.run(out=tmp_path / "part.json")
    assert {name: found["outcome"] for name, found in json.loads((tmp_path / "part.json").read_text()).items()} == {
        "right": "ok"
    }


def test_a_table_that_is_cut_off_leaves_what_it_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def rows(case: speed.Case, layer: tuple[str, int, int], tune: bool) -> Iterator[dict[str, Any]]:
        if layer[0] == "second":
            raise SystemExit("stopped from outside")
        yield {"kernel": case.name, "layer": layer[0], "m": 1, "seconds": 1.0, "bytes": 8, "operations": 8}

    layers = tuple((name, 64, 128) for name in ("first", "second", "third"))
    monkeypatch.setattr(speed, "CASES", (speed.CASES[0]._replace(layers=layers),))
    monkeypatch.setattr(speed, "MOE", ())
    monkeypatch.setattr(speed, "dense_rows", rows)
    for name, value in (("copy_bandwidth", 4e12), ("matmul_rate", 8e14)):
        monkeypatch.setattr(timing, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr("sys.argv", ["speed", "--seconds", "60"])
    monkeypatch.setenv("OUT", str(tmp_path))
    with pytest.raises(SystemExit, match="stopped"):
        speed.main()
    found = json.loads((tmp_path / "speed.json").read_text())
    assert [row["layer"] for row in found["rows"]] == ["first"]
    assert found["left_out"] == ["w4a16 sym second", "w4a16 sym third"]
    assert "w4a16 sym third" in (tmp_path / "speed.txt").read_text()


def test_the_parts_have_room_in_eight_minutes() -> None:
    """Each part ends by itself before it is stopped, with 25 s for imports and what it is in the middle of."""
    script = (ROOT / "benchmarks/gpu/run.sh").read_text()
    parts = re.findall(r"timeout -k 3 (\d+) .* --seconds (\d+)", script)
    assert len(parts) == 2 and all(int(stop) - int(own) >= 25 for stop, own in parts)
    (whole,) = re.findall(r"left=\$\(\((\d+) - SECONDS\)\)", script)
    assert sum(int(stop) for stop, _ in parts) + 60 < int(whole) < 8 * 60


def test_every_kernel_is_checked() -> None:
    names = " ".join(correctness.checks())
    for part in (
        "w4a16 awq g-1 fp16",
        "act-order",
        "w8a16",
        "nvfp4",
        "fp8 block",
        "int8",
        "kv_cache",
        "moe mxfp4 swiglu",
        "moe fp8 channel silu",
        "moe int8 silu",
        "moe w4a16 asym silu",
    ):
        assert part in names


@pytest.mark.parametrize("case", speed.CASES, ids=lambda case: case.name)
def test_rows_of_the_table(case: speed.Case) -> None:
    rows = list(speed.dense_rows(case, ("small", 64, 128), False))
    assert [row["m"] for row in rows] == [1, 4]
    line = speed.text(rows[1], 4e12, 8e14)
    assert "1000.0 us" in line and "bf16  1.00x" in line
    # 64 x 128 weights of 4 to 16 bits, and scales.
    assert 64 * 128 // 2 <= rows[0]["bytes"] <= 64 * 128 * 2 + 4096


def test_experts_are_counted_by_what_is_touched() -> None:
    rows = list(speed.moe_rows("small", 4, 128, 128, 2))
    assert {row["kernel"] for row in rows} == {"moe w4a16", "moe fp8 block", "moe mxfp4"}
    assert all(2 <= row["experts"] <= 4 for row in rows)


def test_what_is_measured_is_kept_for_the_next_process(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = configs.candidates(1, 4096, 32)
    assert len(tried) <= 8
    slowest_first = {config: float(len(tried) - i) for i, config in enumerate(tried)}
    assert configs.tune("gpu:int4", 1, 4096, 32, slowest_first.__getitem__, 132) == tried[-1]
    assert configs.choose(1, 4096, 32, key="gpu:int4") == tried[-1]
    assert configs.choose(1, 4096, 32) == tried[0]
    configs.user_file().write_text("not json")
    configs._measured.cache_clear()
    assert configs.choose(1, 4096, 32, key="gpu:int4") == tried[0]
    configs._measured.cache_clear()


@pytest.mark.parametrize("kind", load_test.DECLARED)
def test_dummy_checkpoints_are_whole(kind: str, tmp_path: Path) -> None:
    from mlload.checkpoint.checkpoint import Checkpoint

    total = load_test.write(tmp_path / kind, kind, 2, hidden=256, inner=512, vocab=64)
    checkpoint = Checkpoint.open(str(tmp_path / kind))
    assert sum(tensor.nbytes for tensor in checkpoint.tensors.values()) == total
    model = read_model(checkpoint)
    assert not [finding for finding in model.findings if finding.severity == "error"]
    assert (model.quant.method if model.quant else "bf16") == kind


def test_the_script_says_that_there_is_no_gpu(tmp_path: Path) -> None:
    import sys

    command = ["bash", str(ROOT / "benchmarks/gpu/run.sh")]
    environment = {"PATH": "/usr/bin:/bin", "OUT": str(tmp_path), "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "nothing is measured and nothing is claimed" in done.stderr
