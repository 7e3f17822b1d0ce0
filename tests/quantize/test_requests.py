"""What is asked, refused, left out, forecast and gone on with."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mlload.quantize.recipe import make_recipe
from tests.quantize.conftest import Run


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_dry_run_forecasts_and_writes_nothing(demo: Path, tmp_path: Path, run: Run) -> None:
    code, result = run(demo, "-o", tmp_path / "out", "--method", "fp8", "--dry-run")
    assert code == 0
    assert not list(tmp_path.iterdir())
    cast = result["forecast"]
    assert run(demo, "-o", tmp_path / "out", "--method", "fp8")[0] == 0
    written = sum(p.stat().st_size for p in (tmp_path / "out").glob("*.safetensors"))
    assert 0 <= cast["output_bytes"] - written < 64 * 1024
    assert cast["memory_bytes"] > 0
    assert cast["seconds"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--method", "rtn", "--group-size", "96", "--tp", "3"], "128 % 96 = 32"),
        (["--method", "fp8", "--scheme", "FP8_BLOCK"], "192 % 128 = 64"),
        (["--method", "rtn", "--bits", "3"], "--bits takes 4 or 8"),
        (["--method", "fp8", "--bits", "8"], "belong to integer weights"),
        (["--method", "rtn", "--save-as", "gptq", "--asym"], "symmetric"),
        (["--method", "fp8", "--save-as", "fp8"], "FP8_BLOCK"),
        (["--method", "rtn", "--tp", "5"], "do not divide by tp 5"),
        (["--method", "rtn", "--max-memory", "1MB"], "--max-memory allows"),
        (["--method", "awq", "--calib", "/no/such/file.txt"], "cannot be read"),
        (["--method", "awq", "--asym", "--seq-len", "4096"], "positions"),
        (["--method", "rtn", "--ignore", "*_proj"], "nothing is left to quantize"),
        (["--method", "rtn", "--ignore", "layers.1"], "'*layers.1*' matches model.layers.1."),
        (["--method", "rtn", "--ignore", "re:.*qproj"], "--ignore re:.*qproj names no layer"),
        (["--method", "rtn", "--override", "qproj=bits:8"], "--override qproj names no layer"),
        (["--method", "rtn", "--act-order"], "--act-order is the order of GPTQ's columns"),
        (["--method", "awq", "--no-act-order"], "--act-order is the order of GPTQ's columns"),
        (["--method", "fp8", "--no-clip"], "--method fp8 searches none"),
        (["--method", "int8", "--smooth", "0.5", "--clip"], "--method int8 searches none"),
        (["--method", "awq", "--smooth", "0.5"], "--smooth belongs to --method int8"),
        (["--method", "rtn", "--calib", "text.txt"], "--calib belongs to calibration data"),
        (["--method", "nvfp4", "--seed", "3"], "--seed belongs to calibration data"),
        (["--method", "fp8", "--seq-len", "64"], "--seq-len belongs to calibration data"),
        (["--method", "fp8", "--report", "/no/such/folder/r.json"], "there is no folder /no/such/folder"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    words: list[str], said: str, demo: Path, tmp_path: Path, run: Run
) -> None:
    code, result = run(demo, "-o", tmp_path / "out", *words)
    assert code != 0
    assert said in result["error"]
    assert not list(tmp_path.iterdir())


def test_an_output_that_exists_is_left_alone(demo: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    code, result = run(demo, "-o", tmp_path / "out", "--method", "fp8")
    assert code == 2
    assert "nothing is ever overwritten" in result["error"]


def test_a_damaged_source_is_refused_with_its_finding(demo: Path, tmp_path: Path, run: Run) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(demo, broken)
    file = next(broken.glob("*.safetensors"))
    with open(file, "r+b") as handle:
        handle.truncate(file.stat().st_size - 100)
    code, result = run(broken, "-o", tmp_path / "out", "--method", "fp8")
    assert code == 1
    assert "is not whole" in result["error"]
    assert not (tmp_path / "out.partial").exists()


def test_a_quantized_source_is_refused(demo: Path, tmp_path: Path, run: Run) -> None:
    assert run(demo, "-o", tmp_path / "once", "--method", "fp8")[0] == 0
    code, result = run(tmp_path / "once", "-o", tmp_path / "twice", "--method", "rtn")
    assert code == 1
    assert "quantized already" in result["error"]


def test_nan_weights_leave_nothing_half_written(demo: Path, tmp_path: Path, run: Run) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(demo, bad)
    file = next(f for f in bad.glob("*.safetensors") if "model.layers.3.mlp.up_proj.weight" in load_file(f))
    tensors = load_file(file)
    tensors["model.layers.3.mlp.up_proj.weight"][0, 0] = float("nan")
    save_file(tensors, file, metadata={"format": "pt"})
    code, result = run(bad, "-o", tmp_path / "out", "--method", "rtn")
    assert code == 1
    assert "model.layers.3.mlp.up_proj.weight holds NaN" in result["error"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad"]


def test_one_ignored_part_keeps_its_fused_layer_plain(demo: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    code, result = run(demo, "-o", out, "--method", "fp8", "--ignore", "re:.*layers.1.*k_proj")
    assert code == 0, result
    plain = [path for paths in result["kept"].values() for path in paths if "layers.1." in path]
    assert sorted(plain) == [f"model.layers.1.self_attn.{n}_proj" for n in "kqv"]
    ignore = json.loads((out / "config.json").read_text())["quantization_config"]["ignore"]
    from compressed_tensors.utils import match_name  # type: ignore[import-untyped]

    for path in plain:
        assert any(match_name(path, entry) for entry in ignore)
    assert not any(match_name("model.layers.0.self_attn.k_proj", entry) for entry in ignore)
    assert "lm_head" in ignore


def test_what_is_left_alone_is_named_by_its_reason_once(demo: Path, tmp_path: Path, run: Run) -> None:
    """The output head stays anyway, and may be named all the same."""
    words = ("--ignore", "lm_head", "--ignore", "layers.0.mlp.gate_proj", "--override", "q_proj=none")
    code, result = run(demo, "-o", tmp_path / "out", "--method", "fp8", *words, "--dry-run")
    assert code == 0
    left = {reason: sorted(paths) for reason, paths in result["kept"].items()}
    attention = [f"model.layers.{number}.self_attn" for number in range(4)]
    assert left == {
        "the output head": ["lm_head"],
        "left out by --ignore": ["model.layers.0.mlp.gate_proj"],
        "left out by --override": [f"{path}.q_proj" for path in attention],
        "fused with a layer that is left out": sorted(
            ["model.layers.0.mlp.up_proj", *(f"{path}.{part}_proj" for path in attention for part in "kv")]
        ),
    }


def test_an_override_makes_a_second_group(demo: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    code, result = run(demo, "-o", out, "--method", "rtn", "--override", "down_proj=bits:8")
    assert code == 0, result
    groups = json.loads((out / "config.json").read_text())["quantization_config"]["config_groups"]
    assert groups["group_0"]["targets"] == ["Linear"]
    assert groups["group_1"]["weights"]["num_bits"] == 8
    assert groups["group_1"]["targets"] == [f"model.layers.{n}.mlp.down_proj" for n in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["--method", "gptq", "--samples", "4", "--seq-len", "32", "--no-check"],
        ["--method", "awq", "--samples", "4", "--seq-len", "32", "--no-check"],
        ["--method", "int8", "--smooth", "0.5", "--kv-cache-scheme", "fp8", "--samples", "4", "--seq-len", "32"],
        ["--method", "fp8", "--scheme", "FP8_STATIC", "--sequential", "--samples", "4", "--seq-len", "32"],
    ],
)
def test_a_killed_run_goes_on_to_the_same_bytes(words: list[str], demo: Path, tmp_path: Path, run: Run) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog and then some more of it\n" * 200)
    words = [*words, "--calib", str(text)]
    assert run(demo, "-o", tmp_path / "whole", *words)[0] == 0
    command = [sys.executable, "-m", "mlload", "quantize", str(demo), "-o", str(tmp_path / "out"), *words]
    record = tmp_path / "out.partial" / "mlload-progress.json"
    # Stopped as soon as a layer is recorded; the state of another moment is as good.
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while child.poll() is None and time.monotonic() < until:
        if record.exists() and json.loads(record.read_text() or '{"done": 0}')["done"] >= 1:
            break
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (tmp_path / "out").exists(), "the run ended before it was stopped"
    done = json.loads(record.read_text())["done"]
    other = tmp_path / "other"
    shutil.copytree(demo, other)
    os.utime(next(other.glob("*.safetensors")), ns=(1, 1))
    (tmp_path / "other.txt").write_text(text.read_text() + "more")
    with pytest.MonkeyPatch.context() as patch:
        # Before any text is read or a layer is built.
        patch.setattr("mlload.engine.calibrate_text.read_calibration", None)
        patch.setattr("mlload.quantize.run.sound_model", None)
        for source, more, said in (
            (demo, ("--seed", 1), "other calibration data"),
            (demo, ("--calib", tmp_path / "other.txt"), "other calibration data"),
            (demo, ("--ignore", "k_proj"), "other options"),
            (demo, ("--max-shard-size", "1MB"), "other options"),
            (other, (), "another source"),
        ):
            code, result = run(source, "-o", tmp_path / "out", *words, *more, "--resume")
            assert code == 1
            assert f"was begun with {said}: it cannot be gone on with" in result["error"]
    code, result = run(demo, "-o", tmp_path / "out", *words, "--resume")
    assert code == 0, result
    assert result["resumed"]
    assert done >= 1
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_folder_that_cannot_be_written_is_refused(demo: Path, tmp_path: Path, run: Run) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    tmp_path.chmod(0o500)
    code, result = run(demo, "-o", tmp_path / "out", "--method", "fp8")
    tmp_path.chmod(0o700)
    assert code == 1
    assert "cannot be written" in result["error"]


def test_a_source_without_tokenizer_cannot_calibrate(demo: Path, tmp_path: Path, run: Run) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(demo, bare, ignore=shutil.ignore_patterns("token*"))
    code, result = run(bare, "-o", tmp_path / "out", "--method", "awq")
    assert code == 1
    assert "no tokenizer" in result["error"]
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("method", "symmetric", "typed", "cut"),
    [
        ("rtn", True, None, True),
        ("rtn", False, None, False),
        ("rtn", False, True, True),
        ("rtn", True, False, False),
        ("awq", False, None, True),
        ("gptq", True, None, True),
    ],
)
def test_ranges_are_searched_where_it_helps(method: str, symmetric: bool, typed: bool | None, cut: bool) -> None:
    assert make_recipe(method, symmetric=symmetric, clip=typed).clip is cut
