"""The two answers about one checkpoint at one size: does the engine start, and is it then right.

They are never mixed: an engine starts some checkpoints that then answer nonsense.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from mlload.checkpoint.finding import Finding, by_severity
from mlload.plan.plan import Plan
from mlload.plan.unknowns import Unknown

Word = Literal["ok", "warn", "fail", "unknown"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """starts:   True, False where a refusal is certain, None where it cannot be said
    verdict:  "fail" for any error, else "unknown" for anything that matters and could not be judged,
              else "warn" for any warning, else "ok"
    findings: most severe first
    """

    starts: bool | None
    verdict: Word
    findings: tuple[Finding, ...]
    unknowns: tuple[Unknown, ...]


def judge(plan: Plan) -> Verdict:
    """The files' problems, the tensors' and the plan's, together."""
    model = plan.model
    unknowns = list(plan.unknowns)
    if model.inferred:
        unknowns.append(
            Unknown(
                what="the model class",
                why=f"model type {model.config.model_type or '(none)'!r} is not in the tables, so its weights and how "
                "they are cut were guessed from tensor names",
                how_to_know="mlload inspect --tensors shows the guess",
            )
        )
    return combine((*model.checkpoint.problems, *model.findings, *plan.violations), unknowns)


def combine(findings: Iterable[Finding], unknowns: Iterable[Unknown]) -> Verdict:
    """Findings and open questions as one verdict."""
    found, open_questions = tuple(by_severity(list(findings))), tuple(unknowns)
    errors = [finding for finding in found if finding.severity == "error"]
    refused = any(finding.question == "starts" for finding in errors)
    starts = False if refused else None if open_questions else True
    if errors:
        word: Word = "fail"
    elif open_questions:
        word = "unknown"
    else:
        word = "warn" if any(finding.severity == "warning" for finding in found) else "ok"
    return Verdict(starts, word, found, open_questions)
