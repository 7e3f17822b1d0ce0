"""Rules on pipeline stages and on what single model classes refuse."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.finding import Finding, Hint
from mlload.plan.engine_view import EngineView
from mlload.plan.mesh import Mesh
from mlload.plan.model import Model
from mlload.plan.placement import is_expert
from mlload.plan.rule_findings import found, remainder
from mlload.plan.stages import stage_layers, stage_sizes


def stage_findings(model: Model, mesh: Mesh, view: EngineView) -> Iterator[Finding]:
    """Everything that has to do with pipeline stages, then the refusals of the model class."""
    layers = model.config.layers
    partition = mesh.partition
    if partition is not None and (len(partition) != mesh.pp or sum(partition) != layers):
        yield found(
            "TP011",
            "pipeline",
            f"the partition {', '.join(map(str, partition))} has {len(partition)} stages and {sum(partition)} layers; "
            f"there are {mesh.pp} stages and {layers} layers",
            {"stages": mesh.pp, "layers": layers, "partition": list(partition)},
        )
    if mesh.pp > 1:
        yield from _pipeline(model, mesh, view)
    yield from _class_refusals(model, mesh, view)


def _pipeline(model: Model, mesh: Mesh, view: EngineView) -> Iterator[Finding]:
    if view.class_name is not None and view.class_facts.get("pp") is False:
        yield found(
            "TP012",
            "pipeline",
            f"{view.class_name} does not support pipeline parallelism (pp {mesh.pp})",
            {"pp": mesh.pp},
            hints=(Hint("use tensor parallelism or data-parallel replicas instead"),),
        )
    sizes = stage_sizes(model.config.layers, mesh.pp, mesh.partition)
    empty = sum(1 for size in sizes if size == 0)
    if empty:
        yield found(
            "TP018",
            "pipeline",
            f"{model.config.layers} layers on {mesh.pp} stages leave {empty} stages without a layer",
            {"layers": model.config.layers, "pp": mesh.pp, "empty": empty},
            severity="warning",
        )
    if "experts_on_every_stage" not in view.class_facts:
        return
    families = [param.spec for param in view.params if is_expert(param.spec) and not param.spec.draft]
    sparse = frozenset(layer for spec in families for layer in spec.layers or ())
    for stage in range(mesh.pp):
        mine = stage_layers(model.config.layers, mesh, stage)
        if sparse and not any(layer in sparse for layer in mine):
            yield found(
                "TP013",
                f"pipeline stage {stage}",
                f"stage {stage} of {mesh.pp} has no layer with experts, and {view.class_name} stops there",
                {"stage": stage, "pp": mesh.pp},
            )
            return


def _class_refusals(model: Model, mesh: Mesh, view: EngineView) -> Iterator[Finding]:
    experts = max((param.expert_total for param in view.params if not param.spec.draft), default=0)
    if experts and mesh.tp > experts and view.class_facts.get("experts_at_least_tp"):
        yield found(
            "TP014",
            "experts",
            f"tp {mesh.tp} is more than the {experts} experts, and {view.class_name} refuses that",
            {"experts": experts, "tp": mesh.tp},
        )
    if "experts_cut_by_world" in view.class_facts:
        world = mesh.tp * mesh.pp * mesh.dp
        width = next((p.spec.k for p in view.params if is_expert(p.spec) and p.spec.style == "row"), 0)
        if width % world:
            yield found(
                "TP017",
                "experts",
                f"an expert is {width} wide, which does not divide by all {world} ranks: {remainder(width, world)}",
                {"width": width, "ranks": world},
                severity="warning",
            )
