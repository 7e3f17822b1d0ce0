"""Which of a type's layouts a checkpoint has: experts one by one, stacked, transposed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlload.checkpoint.config import ConfigView
from mlload.checkpoint.tensor import TensorRef
from mlload.plan.architectures.architecture import Architecture, Params
from mlload.plan.params import ParamSpec


def fitting(architecture: Architecture, config: ConfigView, tensors: Mapping[str, TensorRef]) -> Architecture:
    """The architecture with the layout that fits best as its own; the usual one where none fits better."""
    if not architecture.variants or not tensors:
        return architecture
    modules = {name.rpartition(".")[0] for name in tensors}
    layouts = (architecture.build, *architecture.variants)
    scores = [_score(layout, config, tensors, modules) for layout in layouts]
    best = layouts[scores.index(max(scores))]
    if best is architecture.build:
        return architecture
    others = tuple(layout for layout in layouts if layout is not best)
    return replace(architecture, build=best, variants=others)


def _score(layout: Params, config: ConfigView, tensors: Mapping[str, TensorRef], modules: set[str]) -> tuple[int, int]:
    """(families less those that the files lack, families whose shape is right)."""
    there = right = 0
    for spec in layout(config):
        if spec.alias_of or spec.optional or spec.engine_only:
            continue
        found = _first(spec, tensors)
        known = found is not None or next(iter(spec.modules()), "") in modules
        there += 1 if known else -1
        right += found is not None and found.shape == spec.shape
    return there, right


def _first(spec: ParamSpec, tensors: Mapping[str, TensorRef]) -> TensorRef | None:
    return tensors.get(spec.tensor(next(iter(spec.modules()), "")))
