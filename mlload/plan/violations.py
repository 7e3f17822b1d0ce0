"""Every rule that sizes break, of every layer, as findings."""

from __future__ import annotations

from mlload.checkpoint.finding import Finding
from mlload.plan.engine_view import EngineView
from mlload.plan.mesh import Mesh
from mlload.plan.model import Model
from mlload.plan.parallel_rules import parallel_findings
from mlload.profiles import Profile


def violations(model: Model, profile: Profile, mesh: Mesh, view: EngineView) -> tuple[Finding, ...]:
    """All of them, in the order in which an engine would meet them."""
    return tuple(parallel_findings(model, profile, mesh, view))
