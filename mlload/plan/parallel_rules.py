"""Rules on tensor- and pipeline-parallel sizes that hold whatever the quantization is."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.finding import Finding
from mlload.plan.engine_view import EngineView
from mlload.plan.mesh import Mesh
from mlload.plan.model import Model
from mlload.profiles import Profile


def parallel_findings(model: Model, profile: Profile, mesh: Mesh, view: EngineView) -> Iterator[Finding]:
    heads = model.config.heads
    if heads and heads % mesh.tp:
        yield Finding(
            "TP001",
            "error",
            "starts",
            "config.json",
            f"{heads} attention heads do not divide by tp {mesh.tp}: {heads} % {mesh.tp} = {heads % mesh.tp}",
            {"heads": heads, "tp": mesh.tp},
        )
