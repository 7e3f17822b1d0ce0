"""Every rule that sizes break, of every layer, as findings."""

from __future__ import annotations

from mlload.checkpoint.finding import Finding
from mlload.plan.alignment_rules import Capability, alignment_findings
from mlload.plan.engine_view import EngineView
from mlload.plan.generic_alignment import stored_unit_findings
from mlload.plan.mesh import Mesh
from mlload.plan.model import Model
from mlload.plan.parallel_rules import parallel_findings
from mlload.plan.stage_rules import stage_findings


def violations(model: Model, mesh: Mesh, view: EngineView, capability: Capability | None) -> tuple[Finding, ...]:
    """All of them: of the whole model, of stages, then layer by layer."""
    return (
        *parallel_findings(model, mesh, view),
        *stage_findings(model, mesh, view),
        *(alignment_findings(view, capability) if view.profile.engine == "vllm" else stored_unit_findings(view.layers)),
    )
