"""What is wrong, where, and what to do: the one record that every part of mlload reports with.

A problem of a checkpoint is data, never an exception: reading and planning go on and collect
all of them. Exceptions are for requests that cannot be carried out at all (`MlloadError`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]
Question = Literal["starts", "right", "fits", "content"]

SEVERITY_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}


@dataclass(frozen=True, slots=True)
class Hint:
    """One way out: `what` is a sentence, `command` can be typed, `needs` says what it takes.

    `needs` is "these files" (works on the checkpoint as it is) or "original weights".
    Hints of a finding are ordered: what starts these files first.
    """

    what: str
    command: str | None = None
    needs: Literal["these files", "original weights"] = "these files"

    def as_json(self) -> dict[str, Any]:
        return {"what": self.what, "command": self.command, "needs": self.needs}


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact that a user should know.

    code:     stable, letters and three digits ("TP021"); `mlload rules CODE` explains it
    severity: "error" (no), "warning" (yes, but), "info" (good to know)
    question: which question it answers: does the engine start ("starts"), are the numbers then
              right ("right"), does it fit in memory ("fits"), are the bytes sound ("content")
    where:    layer, tensor or file; layer and expert ranges are folded ("model.layers.0-79.mlp.down_proj")
    message:  one sentence with its numbers in it ("3696 % 128 = 112")
    numbers:  the same numbers by name, for machines
    """

    code: str
    severity: Severity
    question: Question
    where: str
    message: str
    numbers: dict[str, Any] = field(default_factory=dict)
    hints: tuple[Hint, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "severity": self.severity,
            "question": self.question,
            "where": self.where,
            "message": self.message,
            "numbers": dict(self.numbers),
            "hints": [hint.as_json() for hint in self.hints],
        }


def by_severity(findings: list[Finding]) -> list[Finding]:
    """Most severe first; within a severity the order of discovery is kept."""
    return sorted(findings, key=lambda finding: SEVERITY_ORDER[finding.severity])


class MlloadError(Exception):
    """A request that cannot be carried out; shown as one sentence and the next thing to type.

    exit_code follows the documented table: 1 no, 2 wrong usage, 3 could not judge.
    """

    def __init__(self, message: str, *, hint: str | None = None, exit_code: int = 2) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code
