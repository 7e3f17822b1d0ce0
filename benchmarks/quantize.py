"""Perplexity, time and memory of `mlload quantize` on a real model.

    python -m benchmarks.quantize MODEL CALIB.txt EVAL.txt [--draws 3] [--group-size 64]

Prints one row a method and draw: perplexity and KL on 16 chunks of 256 tokens, evenly spaced over the evaluation text,
seconds of the whole command, and its peak of RssAnon + RssShmem, sampled from /proc. The hashes of both texts come
first. Set OMP_NUM_THREADS.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.engine.calibrate_quality import Dequantized, final
from mlload.engine.calibrate_text import tokenised
from mlload.engine.layerwise import Layerwise
from mlload.plan.model import read_model

METHODS = {
    "rtn asym": ("--method", "rtn", "--asym"),
    "awq asym": ("--method", "awq"),
    "gptq sym": ("--method", "gptq"),
}
CHUNKS, LENGTH = 16, 256
SAMPLED = ("RssAnon:", "RssShmem:")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("calib", type=Path)
    parser.add_argument("eval", type=Path)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--group-size", type=int, default=64)
    given = parser.parse_args()
    for text in (given.calib, given.eval):
        print(text.name, hashlib.sha256(text.read_bytes()).hexdigest())
    tokens = chunks(given.model, given.eval)
    whole = log_probabilities(given.model, tokens)
    print(f"{'float':10} perplexity {perplexity(whole, tokens):8.3f}")
    for name, words in METHODS.items():
        for seed in range(given.draws if "rtn" not in name else 1):
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "out"
                command = [sys.executable, "-m", "mlload", "quantize", str(given.model), "-o", str(out), *words]
                command += ["--group-size", str(given.group_size), "--no-check"]
                if "rtn" not in name:  # which looks at no data
                    command += ["--calib", str(given.calib), "--samples", "16", "--seq-len", "256", "--seed", str(seed)]
                seconds, peak = timed(command)
                found = log_probabilities(out, tokens)
                kl = float((whole.exp() * (whole - found)).sum(-1).mean())
                print(
                    f"{name:10} draw {seed}  perplexity {perplexity(found, tokens):8.3f}  KL {kl:.4f}  "
                    f"{seconds:6.1f} s  {peak / 2**20:6.0f} MiB",
                    flush=True,
                )


def chunks(model: Path, text: Path) -> torch.Tensor:
    ids = tokenised(Checkpoint.open(str(model)), text.read_text())
    step = (len(ids) - LENGTH) // (CHUNKS - 1)
    return torch.tensor([ids[at * step : at * step + LENGTH] for at in range(CHUNKS)])


def log_probabilities(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    """Of the next token, [S, L - 1, V], float32."""
    model = read_model(Checkpoint.open(str(folder)))
    reader = Dequantized(model)
    runner = Layerwise(model, reader.tensor, reader.names)
    states = final(runner, tokens)
    return torch.stack([torch.log_softmax(one[:-1], -1) for one in runner.logits(tokens, states)])


def perplexity(found: torch.Tensor, tokens: torch.Tensor) -> float:
    return math.exp(-float(found.gather(2, tokens[:, 1:, None]).mean()))


def timed(command: list[str]) -> tuple[float, int]:
    """Seconds, and the peak of RssAnon + RssShmem in bytes."""
    began, peak = time.monotonic(), 0
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while child.poll() is None:
        try:
            status = Path(f"/proc/{child.pid}/status").read_text()
        except OSError:
            break
        peak = max(peak, sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(SAMPLED)))
        time.sleep(0.05)
    if child.wait():
        raise SystemExit(f"failed: {' '.join(command)}")
    return time.monotonic() - began, peak


if __name__ == "__main__":
    main()
