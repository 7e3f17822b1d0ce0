"""kill -9 of quantize at random moments: the output is either not there, or complete; --resume gives the same bytes.

MLLOAD_KILLS says how often (`make kill`: 50).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.writer.build import write_checkpoint

KILLS = int(os.environ.get("MLLOAD_KILLS", "3"))
# Small steps, so that a kill falls between them.
START = (
    "import mlload.writer.execute as e, mlload.quantize.slabs as s; e.EPOCH = 1 << 20; s.ELEMENTS = 1 << 15; "
    "import sys; from mlload.cli.app import main; sys.exit(main())"
)
METHODS = {
    "rtn": ["--method", "rtn"],
    "awq": ["--method", "awq", "--samples", "4", "--seq-len", "32"],
    "gptq": ["--method", "gptq", "--samples", "4", "--seq-len", "32"],
}


def command(source: Path, out: Path, words: list[str]) -> list[str]:
    return [sys.executable, "-c", START, "quantize", str(source), "-o", str(out), *words, "--no-check"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_killed_at_random_moments(method: str, demo: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog and then some more of it\n" * 200)
    words = [*METHODS[method], *(["--calib", str(text)] if method != "rtn" else [])]
    started = time.perf_counter()
    subprocess.run(command(demo, tmp_path / "whole", words), check=True, capture_output=True)
    took = time.perf_counter() - started
    expected = contents(tmp_path / "whole")
    chance = random.Random(20)
    unfinished = resumed = 0
    for number in range(KILLS):
        out = tmp_path / f"out{number}"
        tries = 0
        while not out.exists():
            again = ["--resume"] if tries else []
            child = subprocess.Popen(
                command(demo, out, [*words, *again]), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            try:
                # Most of the time passes before the first byte is written. Later and later, so that it ends at last.
                said = child.communicate(timeout=chance.uniform(0.5, 1.0 + 0.1 * tries) * took)[0].decode()
                assert child.returncode == 0, said
                resumed += "went on from an interrupted run" in said
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
                child.communicate()
                unfinished += not out.exists()
            tries += 1
        assert contents(out) == expected
        assert not out.with_name(out.name + ".partial").exists()
    assert KILLS < 10 or (unfinished and resumed), "no kill fell between the first byte and the last"


def finite(file: Path) -> None:
    """Random bf16 below 2: the highest bit of every exponent is cleared."""
    raw = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(raw[:8], "little")
    raw[start + 1 :: 2] = bytes(byte & 0xBF for byte in raw[start + 1 :: 2])
    file.write_bytes(raw)


@pytest.mark.slow
def test_killed_while_a_large_source_is_written(tmp_path: Path) -> None:
    """Long enough a write that every kill falls into it."""
    from tests.plan.tiny_models import LLAMA

    config = {**LLAMA, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6, "head_dim": 64}
    source = write_checkpoint(tmp_path / "source", config)
    for file in source.glob("*.safetensors"):
        finite(file)
    words = ["--method", "rtn", "--group-size", "64"]
    subprocess.run(command(source, tmp_path / "whole", words), check=True, capture_output=True)
    out, record = tmp_path / "out", tmp_path / "out.partial" / "mlload-progress.json"
    child = subprocess.Popen(command(source, out, words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 300
    while child.poll() is None and time.monotonic() < until:
        if record.exists() and '"done": 0}' not in record.read_text():
            break
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not out.exists() and record.exists(), "it ended before it was stopped"
    subprocess.run(command(source, out, [*words, "--resume"]), check=True, capture_output=True)
    assert contents(out) == contents(tmp_path / "whole")
