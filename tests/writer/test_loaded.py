"""A folder cut per rank is loaded at its size, and the model says what the whole one says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mlload.cli.app import main
from tests.real_models import RealModel

QUICK = ("--dtype", "float32", "--batch", "1", "--prompt-len", "16", "--decode", "2", "--format", "json")


@pytest.mark.slow
def test_the_real_model_from_its_ranks(real_model: RealModel, tmp_path: Path) -> None:
    """The next token's distribution at 127 positions, against the record of the whole model on one rank."""
    source, record = real_model("smollm2"), tmp_path / "record.json"
    assert main(["shard", str(source), "-o", str(tmp_path / "ranks"), "--tp", "3"]) == 0
    load_test(source, "--record", str(record))
    said = load_test(tmp_path / "ranks", "--tp", "3", "--expect", str(record))
    assert said["load_format"] == "mlload_state" and len(said["ranks"]) == 3


def load_test(folder: Path, *words: str) -> dict[str, object]:
    command = [sys.executable, "-m", "mlload", "load-test", str(folder), *words, *QUICK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result
