"""After writing: every planned layer read back through our own reader, compared with its source, and validated."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.plan.model import read_model
from mlload.quant.formats import spec as stored_spec
from mlload.quant.formats.registry import get
from mlload.quant.formats.tensors import shape as stored_shape
from mlload.quantize.kv import unusable_scales
from mlload.quantize.merge import quantized_already
from mlload.quantize.source import SourceTensors
from mlload.quantize.startable import asked
from mlload.quantize.targets import Target, Targets
from mlload.quantize.weights import as_array

# A weight that lost more than this was not quantized but destroyed.
DESTROYED = 0.5


@dataclass(frozen=True, slots=True)
class Check:
    """planned, quantized: layers; errors: path -> ||W' - W|| / ||W||; problems: sentences, each a reason for exit 1
    tp: sizes that were validated; warnings: sentences
    outputs: decoder layer -> its outputs' error as a share of what it adds; {} where there is no data to run it on"""

    planned: int
    quantized: int
    errors: dict[str, float]
    problems: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    tp: tuple[int, ...] = (1,)
    extra: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "planned": self.planned,
            "quantized": self.quantized,
            "problems": list(self.problems),
            "warnings": list(self.warnings),
            "validated_tp": list(self.tp),
            "relative_error": {path: rounded(error) for path, error in self.errors.items()},
            "layer_error": {path: rounded(error) for path, error in self.outputs.items()},
            **self.extra,
        }


def check(
    path: str,
    source: Checkpoint,
    targets: Targets,
    tp: tuple[int, ...],
    changed: Callable[[str], Any] | None = None,
    outputs: Callable[[], dict[str, float]] | None = None,
) -> Check:
    """changed: of a weight that was scaled before it was quantized, its scaled values (float32 [N, K]), else None
    outputs: runs the layers on data, see engine.layer_errors"""
    written = Checkpoint.open(path)
    problems = [f"{p.where}: {p.message}" for p in written.problems if p.severity == "error"]
    model = read_model(written)
    original = read_model(source)
    before_too = quantized_already(original)
    found = {path: scheme for path, scheme in quantized_already(model).items() if path not in before_too}
    planned = {target.path: target for target in targets.targets}
    for missing in [p for p in planned if p not in found][:5]:
        problems.append(f"{missing} was planned and is not quantized")
    for more in [p for p in found if p not in planned][:5]:
        problems.append(f"{more} is quantized and was not planned")
    for target in targets.targets:
        there = found.get(target.path)
        if there is not None and (there.bits, there.kind) != (target.scheme.bits, target.scheme.kind):
            problems.append(f"{target.path} reads back as {there.bits} bits {there.kind}")
            break
    answer = asked(model, original, tp)
    problems += answer.sentences()
    before, after = SourceTensors(source), SourceTensors(written)
    problems += unusable_scales(after)[:5]
    errors = {}
    for target in targets.targets:
        if target.path in found:
            weight = changed(target.path) if changed is not None else None
            if weight is None:
                weight = before.tensor(target.weight).float().numpy()
            errors[target.path] = relative_error(dequantized(after, target), weight)
    for bad in [p for p, error in errors.items() if not error < DESTROYED][:5]:
        problems.append(f"{bad}: relative error {errors[bad]:.3f}: the weight is destroyed")
    layers = {} if outputs is None or problems else outputs()
    for bad in [p for p, error in layers.items() if not error < DESTROYED][:5]:
        problems.append(f"{bad}: its outputs are off by {layers[bad]:.3f} of what it adds: the layer is destroyed")
    return Check(
        len(planned),
        sum(p in found for p in planned),
        errors,
        tuple(problems),
        answer.warnings,
        tp,
        outputs=layers,
    )


def dequantized(tensors: SourceTensors, target: Target) -> Any:
    """float32 [N, K] of a written layer, by the format's own reader."""
    parts = {}
    for tensor in stored_spec(target.scheme, target.n, target.k):
        name = f"{target.path}.{tensor.suffix}"
        if name in tensors.checkpoint.tensors:
            parts[tensor.suffix] = as_array(tensors.tensor(name)).reshape(stored_shape(tensor, target.n, target.k))
    return get(target.scheme.format).dequantize(target.scheme, parts, target.n, target.k)


def rounded(error: float | None) -> float | str | None:
    """For JSON, which has no word for what is no number."""
    if error is None:
        return None
    return round(error, 6) if math.isfinite(error) else str(error)


def relative_error(back: Any, weight: Any) -> float:
    size = float(np.linalg.norm(weight))
    return float(np.linalg.norm(back - weight)) / size if size else float(np.linalg.norm(back))
