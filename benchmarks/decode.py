"""Decoding on a CPU: load-test's pace in bf16 and in 4 bits, beside transformers' `generate` with a static cache.

    python -m benchmarks.decode [--rounds 5] [--prompt-len 64] [--decode 64] [--out DIR]

Needs `python -m tools.real_model smollm2`. Each runs in a process of its own, in turn (A B C A B C ...), batch 1, with
as many threads as the machine has cores unless OMP_NUM_THREADS says otherwise:

    transformers  the bf16 model, `generate` with cache_implementation="static"; between its streamed tokens
    bf16          `mlload load-test` of the same folder
    int4          `mlload load-test` of the folder that `mlload quantize --method rtn` (4 bits, groups of 64) made of it

Figures are the median milliseconds between two tokens, medians and ranges over the rounds.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from tools.real_model import smollm2

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
METHODS = ("transformers", "bf16", "int4")
BOUNDS = (("bf16", "transformers", 1.0), ("int4", "bf16", 1.0))  # at most so much of the other's time


def peer(folder: Path, prompt_len: int, decode: int) -> float:
    """Milliseconds between two tokens of `generate`, median."""
    import torch
    from transformers import AutoModelForCausalLM, StaticCache

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    ids = torch.randint(0, model.config.vocab_size, (1, prompt_len), generator=torch.Generator().manual_seed(0))
    times: list[float] = []

    class Clock:
        def put(self, _: Any) -> None:
            times.append(time.perf_counter())

        def end(self) -> None:
            return None

    with torch.inference_mode():
        cache = StaticCache(config=model.config, max_cache_len=prompt_len + decode + 1)
        model.generate(
            ids, past_key_values=cache, max_new_tokens=decode, min_new_tokens=decode, do_sample=False, streamer=Clock()
        )
    # The first call of the streamer is the prompt, the second the first new token.
    between = [later - earlier for earlier, later in pairwise(times[1:])]
    return statistics.median(between[2:]) * 1e3


def ours(folder: Path, prompt_len: int, decode: int) -> tuple[float, list[str]]:
    command = [sys.executable, "-m", "mlload", "load-test", str(folder), "--batch", "1", "--format", "json"]
    sizes = ["--prompt-len", str(prompt_len), "--decode", str(decode)]
    done = subprocess.run([*command, *sizes], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise SystemExit(done.stderr)
    found = json.loads(done.stdout)
    return found["sweep"][0]["inter_token_ms"]["p50"], sorted({use["kernel"] for use in found["kernels"]})


def measure(method: str, folders: dict[str, Path], sizes: tuple[int, int]) -> tuple[float, list[str]]:
    if method != "transformers":
        return ours(folders[method], *sizes)
    command = [sys.executable, "-m", "benchmarks.decode", "--peer", str(folders["bf16"])]
    words = ["--prompt-len", str(sizes[0]), "--decode", str(sizes[1])]
    done = subprocess.run([*command, *words], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.split()[-1]), []


def quantized(source: Path, folder: Path) -> Path:
    made = folder / "int4"
    options = ["--method", "rtn", "--bits", "4", "--group-size", "64"]
    words = [sys.executable, "-m", "mlload", "quantize", str(source), "-o", str(made), *options]
    subprocess.run(words, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt-len", type=int, default=64)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--peer", type=Path)
    options = parser.parse_args()
    sizes = (options.prompt_len, options.decode)
    if options.peer:
        print(peer(options.peer, *sizes))
        return
    source = smollm2()
    loads = [os.getloadavg()[0]]
    times: dict[str, list[float]] = {method: [] for method in METHODS}
    kernels: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="mlload-decode-") as name:
        folders = {"bf16": source, "int4": quantized(source, Path(name))}
        for _ in range(options.rounds):
            for method in METHODS:
                pace, kernels[method] = measure(method, folders, sizes)
                times[method].append(pace)
            loads.append(os.getloadavg()[0])
    threads = os.environ.get("OMP_NUM_THREADS") or str(os.cpu_count())
    said = [
        f"SmolLM2-135M, batch 1, prompt {sizes[0]}, {sizes[1]} tokens decoded, {options.rounds} rounds, "
        f"{threads} threads, load average {min(loads):.1f} to {max(loads):.1f}"
    ]
    medians = {method: statistics.median(found) for method, found in times.items()}
    for method, found in times.items():
        said.append(
            f"{method:13}{medians[method]:7.1f} ms a token ({min(found):.1f} to {max(found):.1f})  "
            f"{', '.join(kernels[method])}".rstrip()
        )
    said.append("")
    for method, by, most in BOUNDS:
        share = medians[method] / medians[by]
        said.append(
            f"{method:5}{share:6.2f} of the time of {by} (bound {most:g}: {'held' if share <= most else 'MISSED'})"
        )
    print("\n".join(said))
    options.out.mkdir(exist_ok=True)
    (options.out / "decode.txt").write_text("\n".join(said) + "\n")
    whole = {"times": times, "kernels": kernels, "load": loads, "date": time.strftime("%F")}
    (options.out / "decode.json").write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
