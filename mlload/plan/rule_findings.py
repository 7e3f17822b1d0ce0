"""How rules on sizes say what they found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlload.checkpoint.finding import Finding, Hint, Question, Severity


def remainder(value: int, divisor: int) -> str:
    """ "3696 % 128 = 112"."""
    return f"{value} % {divisor} = {value % divisor}"


def found(
    code: str,
    where: str,
    message: str,
    numbers: dict[str, Any],
    *,
    question: Question = "starts",
    severity: Severity = "error",
    layers: Sequence[int] | None = None,
    hints: tuple[Hint, ...] = (),
) -> Finding:
    """A finding; an error that keeps the engine from starting unless said otherwise."""
    if layers:
        numbers = {**numbers, "first_layer": layers[0]}
    return Finding(code, severity, question, where, message, numbers, hints)
