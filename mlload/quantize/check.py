"""After writing: every planned layer read back through our own reader, compared with its source, and validated."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.plan.model import read_model
from mlload.quantize.compare import Scaled, weight_errors
from mlload.quantize.kv import unusable_scales
from mlload.quantize.merge import quantized_already
from mlload.quantize.source import SourceTensors
from mlload.quantize.startable import asked
from mlload.quantize.targets import Targets

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
    scaled: Callable[[str], Scaled] | None = None,
    outputs: Callable[[], dict[str, float]] | None = None,
    *,
    compared: bool = True,
) -> Check:
    """scaled: of a target's path, what its weight was scaled by before it was quantized
    outputs: runs the layers on data, see engine.layer_errors; compared: whether `scaled` knows everything"""
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
    there_too = [target for target in targets.targets if target.path in found] if compared else []
    errors = weight_errors(there_too, before, after, scaled or (lambda _: Scaled()))
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


def rounded(error: float | None) -> float | str | None:
    """For JSON, which has no word for what is no number."""
    if error is None:
        return None
    return round(error, 6) if math.isfinite(error) else str(error)
