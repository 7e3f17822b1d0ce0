"""Pipeline stages: which layers, and which of the modules outside the layers, a stage holds."""

from __future__ import annotations

from collections.abc import Sequence

from mlload.plan.mesh import Mesh
from mlload.plan.params import ParamSpec


def stage_sizes(layers: int, stages: int, partition: Sequence[int] | None = None) -> tuple[int, ...]:
    """Layers per stage.

    Spare layers go one each to the stages before the last, the latest first: 61 layers on 4
    stages are 15, 15, 16, 15 (vLLM distributed/utils.py:198). `partition` overrides it, as
    VLLM_PP_LAYER_PARTITION does; one that does not fit is ignored here and reported as TP011.
    """
    if partition is not None and len(partition) == stages and sum(partition) == layers:
        return tuple(partition)
    base, spare = divmod(layers, stages)
    sizes = [base] * stages
    for index in range(2, spare + 2):
        sizes[-index] += 1
    return tuple(sizes)


def stage_layers(layers: int, mesh: Mesh, stage: int) -> range:
    """The layer numbers of one stage."""
    sizes = stage_sizes(layers, mesh.pp, mesh.partition)
    start = sum(sizes[:stage])
    return range(start, start + sizes[stage])


def on_stage(spec: ParamSpec, stage: int, stages: int) -> bool:
    """Whether a module outside the layers lives on a stage."""
    if spec.stage == "first":
        return stage == 0
    if spec.stage == "last":
        return stage == stages - 1
    if spec.stage == "ends":
        return stage in (0, stages - 1)
    return True


def layers_on_stage(spec: ParamSpec, total: int, mesh: Mesh, stage: int) -> Sequence[int] | None:
    """The layers of a family that a stage holds; None for a module outside the layers that it holds.

    A family whose `stage` is not "layer" keeps all its layers together (a vision tower's blocks
    live on the stages that `stage` names). An empty sequence means: nothing here.
    """
    if spec.layers is None or spec.stage != "layer":
        return spec.layers if on_stage(spec, stage, mesh.pp) else ()
    if mesh.pp == 1:
        return spec.layers
    mine = stage_layers(total, mesh, stage)
    if isinstance(spec.layers, range) and spec.layers.step == 1:
        return range(max(mine.start, spec.layers.start), max(min(mine.stop, spec.layers.stop), mine.start))
    return tuple(layer for layer in spec.layers if layer in mine)
