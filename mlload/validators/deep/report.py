"""Many tensors with one trouble are one finding: folded names, sums of counts, and the first place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mlload.checkpoint.finding import Finding, Hint, Question, Severity
from mlload.plan.fold import fold_names

SHOWN = 3


def folded(names: Iterable[str]) -> str:
    groups = fold_names(names)
    more = f" and {len(groups) - SHOWN} more" if len(groups) > SHOWN else ""
    return ", ".join(text for text, _ in groups[:SHOWN]) + more


def finding(
    code: str,
    severity: Severity,
    question: Question,
    names: Sequence[str],
    message: str,
    hints: tuple[Hint, ...] = (),
    **numbers: Any,
) -> Finding:
    return Finding(code, severity, question, folded(names), message, {"tensors": len(names), **numbers}, hints)


def tensors(count: int) -> str:
    return "one tensor" if count == 1 else f"{count:,} tensors"
