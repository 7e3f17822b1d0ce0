"""Bytes, memory and time before anything is written, and what cannot fit."""

from __future__ import annotations

import math
import os
import shutil
import time
from dataclasses import dataclass
from typing import Any

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.quantize import memory
from mlload.quantize.layout import Output
from mlload.quantize.recipe import Recipe
from mlload.quantize.targets import Targets

START_SECONDS = 3.0  # until torch is imported
# Passes over the weights: elements a second of one thread, measured on an AMD EPYC with AVX2 at REFERENCE.
RATES = {"rtn": 1.2e7, "fp8": 4.0e8, "int8": 4.0e8, "mxfp4": 1.2e7, "nvfp4": 1.2e7, "awq": 4.0e6, "gptq": 4.0e6}
REFERENCE = 4.0e10  # float32 multiplications and additions a second of that thread
SEARCHED = {"awq": 14, "gptq": 3}  # products of a weight and a second moment that a method takes
DISK = 5e8  # bytes a second, read and written, where nobody has measured


@dataclass(frozen=True, slots=True)
class Forecast:
    """source, output: bytes of weights; parameters: that are quantized; memory, seconds: expected; free: bytes on the
    output's disk, None where it cannot be told; samples: bytes of calibration samples that lie on it meanwhile;
    threads: of methods without data"""

    source: int
    output: int
    parameters: int
    memory: int
    seconds: float
    free: int | None
    samples: int = 0
    threads: int = 1

    def as_json(self) -> dict[str, Any]:
        return {
            "source_bytes": self.source,
            "output_bytes": self.output,
            "quantized_parameters": self.parameters,
            "memory_bytes": self.memory,
            "seconds": round(self.seconds, 1),
            "free_bytes": self.free,
            "sample_bytes": self.samples,
        }


def forecast(
    checkpoint: Checkpoint,
    targets: Targets,
    recipe: Recipe,
    output: Output,
    path: str,
    tokens: tuple[int, int] = (0, 0),
    limit: int | None = None,
    hidden: int = 0,
) -> Forecast:
    """tokens: samples, and tokens of each; limit: bytes of memory allowed; hidden: the model's width."""
    sizes = [checkpoint.tensors[t.weight].nbytes for t in targets.targets]
    parameters = sum(t.n * t.k for t in targets.targets)
    count, threads, samples = tokens[0] * tokens[1], 1, 0
    if recipe.backend == "autoawq":
        # The whole model in float32, and a copy of what it packs; 20 ratios, each a pass over the samples. Its clipping
        # takes seven times as long as the rest. Measured: 1,544 MiB and 421 s where these say 1,520 MiB and 460 s.
        every = sum(math.prod(ref.shape) for ref in checkpoint.tensors.values())
        size = memory.CLASS_START + 2 * 4 * every + 6 * count * max(t.k for t in targets.targets) * 4
        seconds = START_SECONDS + count * parameters * 42 / REFERENCE * (7 if recipe.clip else 1)
    elif recipe.calibrated:
        size = memory.calibrated(targets.targets, recipe, tokens[1])
        samples = 2 * 4 * count * hidden
        products = 2 * SEARCHED.get(recipe.method, 0) * sum(t.n * t.k * t.k for t in targets.targets)
        passes = 2 if recipe.method == "gptq" else 1
        seconds = START_SECONDS + (products + passes * 2 * count * parameters) / speed()
        seconds += parameters / RATES[recipe.method]
    else:
        size, threads = memory.data_free(targets.targets, recipe, limit)
        seconds = START_SECONDS + parameters / RATES[recipe.method] / max(1, threads - 1) * REFERENCE / speed()
        seconds += (sum(sizes) + output.layout.nbytes) / DISK
    parent = os.path.dirname(os.path.abspath(path))
    while not os.path.isdir(parent) and parent != os.path.dirname(parent):
        parent = os.path.dirname(parent)
    free = shutil.disk_usage(parent).free if os.path.isdir(parent) else None
    source = sum(ref.nbytes for ref in checkpoint.tensors.values())
    return Forecast(source, output.layout.nbytes, parameters, size, seconds, free, samples, threads)


def speed() -> float:
    """Multiplications and additions a second of this machine, one thread, as it is now: the better of two products."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        one, best = torch.ones(512, 512), 1.0
        for _ in range(3):
            began = time.perf_counter()
            one @ one
            best = max(best, 2 * 512**3 / max(1e-6, time.perf_counter() - began))
        return best
    finally:
        torch.set_num_threads(before)


def refuse_what_cannot_fit(found: Forecast, path: str, limit: int | None) -> None:
    """Raises MlloadError for a disk that is too small, a folder that cannot be written, or less memory than asked."""
    parent = os.path.dirname(os.path.abspath(path))
    while not os.path.isdir(parent) and parent != os.path.dirname(parent):
        parent = os.path.dirname(parent)
    if not os.access(parent, os.W_OK | os.X_OK):
        raise MlloadError(f"{parent} cannot be written to", hint="choose another -o", exit_code=1)
    if found.free is not None and found.output + found.samples > found.free:
        raise MlloadError(
            f"{found.output + found.samples:,} bytes are to be written and {parent} has {found.free:,} free",
            hint="choose another -o, or make room",
            exit_code=1,
        )
    if limit is not None and found.memory > limit:
        raise MlloadError(
            f"this run needs about {found.memory / 2**20:,.0f} MiB and --max-memory allows {limit / 2**20:,.0f}",
            hint="a method without data (--method rtn, fp8), or more memory; samples lie on the disk already",
            exit_code=1,
        )
