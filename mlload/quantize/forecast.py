"""Bytes, memory and time before anything is written, and what cannot fit."""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import dataclass
from typing import Any

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.quantize.layout import Output
from mlload.quantize.recipe import Recipe
from mlload.quantize.targets import Targets

TORCH_BYTES = 350 * 2**20  # an interpreter with torch in it
START_SECONDS = 3.0  # until torch is imported
# Elements of weights a second on one core, measured on an AMD EPYC with AVX2.
RATES = {"rtn": 2.0e7, "fp8": 2.0e8, "int8": 2.0e8, "mxfp4": 1.2e7, "nvfp4": 1.2e7, "awq": 1.2e6, "gptq": 1.5e6}


@dataclass(frozen=True, slots=True)
class Forecast:
    """source, output: bytes of weights; parameters: that are quantized; memory, seconds: expected; free: bytes on the
    output's disk, None where it cannot be told"""

    source: int
    output: int
    parameters: int
    memory: int
    seconds: float
    free: int | None

    def as_json(self) -> dict[str, Any]:
        return {
            "source_bytes": self.source,
            "output_bytes": self.output,
            "quantized_parameters": self.parameters,
            "memory_bytes": self.memory,
            "seconds": round(self.seconds, 1),
            "free_bytes": self.free,
        }


def forecast(
    checkpoint: Checkpoint, targets: Targets, recipe: Recipe, output: Output, path: str, tokens: int = 0
) -> Forecast:
    """tokens: of the calibration data, all samples together."""
    sizes = [checkpoint.tensors[t.weight].nbytes for t in targets.targets]
    elements = [t.n * t.k for t in targets.targets]
    parameters = sum(elements)
    if recipe.backend == "autoawq":
        # The whole model in float32, and a copy of what it packs; 20 ratios, each a pass over the samples. Its clipping
        # takes seven times as long as the rest. Measured: 1,544 MiB and 421 s where these say 1,520 MiB and 460 s.
        every = sum(math.prod(ref.shape) for ref in checkpoint.tensors.values())
        memory = TORCH_BYTES + 2 * 4 * every + 6 * tokens * max(t.k for t in targets.targets) * 4
        seconds = START_SECONDS + tokens * parameters * 42 / 4.0e10 * (7 if recipe.clip else 1)
    elif recipe.calibrated:
        layers: dict[int, int] = {}
        for target in targets.targets:
            layer = _layer(target.path)
            layers[layer] = layers.get(layer, 0) + target.n * target.k * 4
        widest = max(t.k for t in targets.targets)
        memory = TORCH_BYTES + 2 * max(layers.values()) + 6 * widest * widest * 4 + 4 * tokens * widest * 4
        seconds = START_SECONDS + parameters / RATES[recipe.method] + tokens * parameters * 6 / 4.0e10
    else:
        memory = TORCH_BYTES + max(sizes) + 6 * 4 * max(elements)
        seconds = START_SECONDS + parameters / RATES[recipe.method] + sum(sizes) / 5e8
    parent = os.path.dirname(os.path.abspath(path))
    while not os.path.isdir(parent) and parent != os.path.dirname(parent):
        parent = os.path.dirname(parent)
    free = shutil.disk_usage(parent).free if os.path.isdir(parent) else None
    source = sum(ref.nbytes for ref in checkpoint.tensors.values())
    return Forecast(source, output.layout.nbytes, parameters, memory, seconds, free)


def _layer(path: str) -> int:
    return next((int(part) for part in path.split(".") if part.isdigit()), -1)


def refuse_what_cannot_fit(found: Forecast, path: str, limit: int | None) -> None:
    """Raises MlloadError for a disk that is too small, a folder that cannot be written, or less memory than asked."""
    parent = os.path.dirname(os.path.abspath(path))
    while not os.path.isdir(parent) and parent != os.path.dirname(parent):
        parent = os.path.dirname(parent)
    if not os.access(parent, os.W_OK | os.X_OK):
        raise MlloadError(f"{parent} cannot be written to", hint="choose another -o", exit_code=1)
    if found.free is not None and found.output > found.free:
        raise MlloadError(
            f"{found.output:,} bytes are to be written and {parent} has {found.free:,} free",
            hint="choose another -o, or make room",
            exit_code=1,
        )
    if limit is not None and found.memory > limit:
        raise MlloadError(
            f"this run needs about {found.memory / 2**20:,.0f} MiB and --max-memory allows {limit / 2**20:,.0f}",
            hint="fewer --samples, a shorter --seq-len, or more memory",
            exit_code=1,
        )
