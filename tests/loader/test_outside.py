"""A load_format from another package: installed, found by its entry point, used by load-test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from tests.engine.tiny import save

pytestmark = pytest.mark.slow

PACKAGE = Path(__file__).parents[2] / "examples" / "loader-package"
LLAMA = {
    "model_type": "llama", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False, "dtype": "float32",
}  # fmt: skip


def test_the_example_package(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    site, folder = tmp_path / "site", tmp_path / "model"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*install, "--target", str(site), str(PACKAGE)], check=True, timeout=120)
    save(folder, LLAMA)
    arrays = {name: tensor.numpy() for name, tensor in load_file(folder / "model.safetensors").items()}
    np.savez(folder / "weights.npz", **arrays)  # type: ignore[arg-type]
    (folder / "model.safetensors").unlink()
    words = ["load-test", str(folder), "--load-format", "npz", "--weights-only", "--dtype", "float32", "--tp", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "mlload", *words, "--format", "json"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(site)},
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["load_format"] == "npz"
    norms = sum(array.nbytes for name, array in arrays.items() if "norm" in name)
    assert found["bytes_read"] == sum(array.nbytes for array in arrays.values()) + norms
