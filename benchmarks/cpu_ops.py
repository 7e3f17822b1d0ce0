"""The chosen CPU kernel of each scheme against fp32 and bf16 `F.linear`, over layers of a small model and 4096x4096.

    python -m benchmarks.cpu_ops [--seconds 4] [--out benchmarks/results/cpu_ops.json]

Candidates take turns and the best of their times counts, so that a busy neighbour hurts all alike; the ratios are what
is kept. A ratio above 1: the kernel is faster than the float product of the same layer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mlload import kernels
from mlload.quant.spec import Scheme
from tests.kernels import linears

# SmolLM2-135M's down projection and fused gate and up, and a square one.
LAYERS = ((576, 1536), (3072, 576), (4096, 4096))
ROWS = (1, 64)
SCHEMES: tuple[tuple[str, Scheme, torch.dtype], ...] = (
    ("awq 4-bit g64", linears.grouped("awq", group=64, symmetric=False), torch.bfloat16),
    ("gptq 4-bit g64", linears.grouped("gptq", group=64), torch.bfloat16),
    ("gptq 4-bit g64", linears.grouped("gptq", group=64), torch.float32),
    ("gptq act-order", linears.grouped("gptq", group=64, act_order=True), torch.bfloat16),
    ("int8 weights", linears.INT8_WEIGHTS, torch.bfloat16),
    ("int8 w8a8", linears.INT8, torch.float32),
    ("fp8 channel", linears.FP8_CHANNEL, torch.float32),
    ("fp8 block", linears.FP8_BLOCK, torch.float32),
    ("mxfp4", linears.MXFP4, torch.float32),
    ("nvfp4", linears.NVFP4, torch.float32),
)


def stored(scheme: Scheme, n: int, k: int) -> dict[str, Tensor]:
    if scheme.kind == "int":
        return (linears.int8(n, k) if "int-quantized" in scheme.layout else linears.integer(scheme, n, k)).tensors
    return (linears.fp8 if scheme.bits == 8 else linears.fp4)(scheme, n, k).tensors


def best_times(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop:
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - started)
    return best


def table(seconds: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for n, k in LAYERS:
        made: list[tuple[str, kernels.LinearKernel, dict[str, Tensor], torch.dtype]] = []
        for name, scheme, dtype in SCHEMES:
            kernel = kernels.select(scheme, n, k, dtype).kernel
            short = str(dtype).removeprefix("torch.").replace("bfloat16", "bf16").replace("float32", "fp32")
            made.append((f"{name} {short}", kernel, kernel.prepare(stored(scheme, n, k)), dtype))
        wide = torch.randn(n, k)
        for m in ROWS:
            x = torch.randn(m, k)
            half, weight = x.to(torch.bfloat16), wide.to(torch.bfloat16)
            calls: dict[str, Callable[[], object]] = {
                "fp32": partial(F.linear, x, wide),
                "bf16": partial(F.linear, half, weight),
            }
            for name, kernel, packed, dtype in made:
                calls[name] = partial(kernel.apply, x.to(dtype), packed)
            best = best_times(calls, seconds)
            for name, kernel, packed, _ in made:
                rows.append(
                    {
                        "scheme": name,
                        "kernel": kernel.name,
                        "n": n,
                        "k": k,
                        "m": m,
                        "against_fp32": round(best["fp32"] / best[name], 2),
                        "against_bf16": round(best["bf16"] / best[name], 2),
                        "bits": round(sum(t.numel() * t.element_size() for t in packed.values()) * 8 / (n * k), 2),
                    }
                )
    return rows


def text(rows: list[dict[str, Any]]) -> str:
    head = f"{'scheme':24}{'kernel':16}{'layer':14}{'M':>3}{'/ fp32':>9}{'/ bf16':>9}{'bits':>7}"
    lines = [
        f"{r['scheme']:24}{r['kernel']:16}{r['n']:>5} x {r['k']:<6}{r['m']:>3}"
        f"{r['against_fp32']:9.2f}{r['against_bf16']:9.2f}{r['bits']:7.2f}"
        for r in rows
    ]
    return "\n".join([head, *lines]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=4.0, help="for each layer and number of rows")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/cpu_ops.json")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    machine = {
        "torch": torch.__version__,
        "cpu": platform.processor() or platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": threads,
        "cores": os.cpu_count(),
    }
    rows = table(arguments.seconds)
    arguments.out.write_text(json.dumps({**machine, "rows": rows}, indent=1) + "\n")
    head = (
        f"torch {machine['torch']}, {machine['capability']}, {threads} thread(s) of {machine['cores']} cores.\n"
        "Ratios of times: above 1 the quantized kernel is faster than F.linear of that dtype.\n"
        "bits: of memory for each weight.\n"
    )
    arguments.out.with_suffix(".txt").write_text(head + text(rows))
    print(head + text(rows))


if __name__ == "__main__":
    main()
