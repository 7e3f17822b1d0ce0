"""What an engine's profile has no facts of: an honest "not yet" in place of a guess."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from mlload.checkpoint.finding import Finding
from mlload.plan.plan import Plan
from mlload.plan.unknowns import Unknown


def missing_facts(plan: Plan) -> Iterator[Unknown]:
    """Open questions of this plan that the engine's profile cannot answer."""
    profile = plan.profile
    for name in profile.value("not_yet", ()):
        if matters(name, plan):
            why = f"the profile of {profile.label} holds no facts about it yet"
            yield Unknown(f"{profile.engine}: {name}", why, "start it there, or ask with --engine vllm")


def matters(name: str, plan: Plan) -> bool:
    """Whether a question touches this plan at all: without quantized layers their kernels decide nothing."""
    if name in ("kernels of the quantized layers", "quantization methods"):
        return plan.model.quant is not None
    if name == "tensor parallelism":
        return plan.mesh.tp > 1 or plan.mesh.pp > 1
    return True


def as_far_as_known(findings: Iterable[Finding], plan: Plan) -> Iterator[Finding]:
    """A refusal is certain only where the engine's own rules are known; else the same sentence is a warning."""
    unsure = "tensor parallelism" in plan.profile.value("not_yet", ())
    for finding in findings:
        yield replace(finding, severity="warning") if unsure and finding.severity == "error" else finding
