"""Findings and open questions from what the pass saw."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import Finding
from mlload.plan.plan import Plan
from mlload.plan.unknowns import Unknown
from mlload.validators.deep import contents, gptq, scales
from mlload.validators.deep.holes import holes
from mlload.validators.deep.scan import Scan
from mlload.validators.deep.tied import compared


class Judged(NamedTuple):
    findings: tuple[Finding, ...]
    unknowns: tuple[Unknown, ...]


def judge_contents(scan: Scan, checkpoint: Checkpoint, plan: Plan | None) -> Judged:
    """Every rule on the numbers of a checkpoint; one that breaks is an open question, the others go on.

    plan: says in which dtype which engine would run it; None where no architecture could be read.
    """
    rules: dict[str, Callable[[], Iterator[Finding | Unknown]]] = {
        "DP001": lambda: contents.not_finite(scan, checkpoint, plan),
        "DP003": lambda: scales.zero_scales(scan, checkpoint),
        "DP004": lambda: scales.constant_scales(scan),
        "DP005": lambda: scales.denormal_scales(scan),
        "DP006": lambda: contents.too_large(scan, checkpoint),
        "DP007": lambda: contents.saturated(scan),
        "DP008": lambda: contents.all_zero(scan, checkpoint),
        "DP009": lambda: holes(scan, checkpoint),
        "DP014": lambda: contents.beyond_float16(scan, checkpoint, plan),
        "DP016": lambda: gptq.zero_points(scan),
        "DP018": lambda: gptq.group_numbers(scan, checkpoint, plan),
        "DP019": lambda: scales.never_calibrated(scan),
        "DP020": lambda: iter(()) if plan is None else compared(plan.model, checkpoint),
    }
    findings: list[Finding] = []
    unknowns: list[Unknown] = []
    for code, rule in rules.items():
        try:
            for said in rule():
                (findings if isinstance(said, Finding) else unknowns).append(said)  # type: ignore[arg-type]
        except Exception as error:
            if os.environ.get("MLLOAD_DEBUG"):
                raise
            unknowns.append(Unknown(f"rule {code}", f"{type(error).__name__}: {error}", ""))
    return Judged(tuple(findings), tuple(unknowns))
