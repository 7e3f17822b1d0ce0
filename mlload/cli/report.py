"""What the formats for machines and reviewers are made from: SARIF, JUnit, GitHub annotations, Markdown.

A command turns its own result into one `Report`; each format is one module with `render(report) -> str`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from mlload.checkpoint.finding import Finding, Hint, by_severity

if TYPE_CHECKING:
    from mlload.cli.places import Place
    from mlload.gate.waivers import Waiver
    from mlload.plan.unknowns import Unknown

FORMATS = ("sarif", "junit", "github", "markdown")


def way_out(hint: Hint, what: Callable[[str], str] = str, command: Callable[[str], str] = str) -> str:
    """A hint and what to type, each as its format writes it: no full stop stands before the colon."""
    if not hint.command:
        return what(hint.what)
    return f"{what(hint.what.rstrip('.'))}: {command(hint.command)}"


@dataclass(frozen=True, slots=True)
class Reported:
    """One finding about one source, once for all the sizes that it holds for.

    at:     those sizes ("tp 2", "tp 4"); () where it holds for all that were asked
    place:  the file that it is about
    waiver: why it does not count, None where it does
    """

    finding: Finding
    source: str
    at: tuple[str, ...]
    place: Place
    waiver: Waiver | None = None

    @property
    def title(self) -> str:
        """ "TP002 at tp 2, tp 4"."""
        return self.finding.code + (f" at {', '.join(self.at)}" if self.at else "")

    @property
    def text(self) -> str:
        """Place and sentence on one line."""
        return f"{self.finding.where}: {self.finding.message}"


@dataclass(frozen=True, slots=True)
class Case:
    """One question and its answer: a source at a size. starts and verdict as in `validators.verdict`."""

    source: str
    size: str
    starts: bool | None
    verdict: str
    findings: tuple[Finding, ...]
    unknowns: tuple[Unknown, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """command: "validate"; engine: "vLLM 0.33.0"; notes: closing lines, such as the command that would start;
    strict, allow_unknown: whether warnings fail and unknowns pass, as asked"""

    command: str
    engine: str
    cases: tuple[Case, ...]
    findings: tuple[Reported, ...]
    notes: tuple[str, ...]
    strict: bool = False
    allow_unknown: bool = False

    @property
    def counting(self) -> tuple[Reported, ...]:
        """Findings that are not waived, most severe first."""
        found = [entry for entry in self.findings if entry.waiver is None]
        order = {id(f): at for at, f in enumerate(by_severity([entry.finding for entry in found]))}
        return tuple(sorted(found, key=lambda entry: order[id(entry.finding)]))

    @property
    def waived(self) -> tuple[Reported, ...]:
        return tuple(entry for entry in self.findings if entry.waiver is not None)


def renderer(form: str) -> Callable[[Report], str]:
    """The `render` of one of FORMATS."""
    render: Callable[[Report], str] = import_module(f"mlload.cli.report_{form}").render
    return render


def write_atomically(path: str, text: str) -> None:
    """A report is there whole or not at all. What is no regular file (a pipe, a terminal) is written to directly.

    Raises OSError.
    """
    data = text.encode("utf-8", "backslashreplace")
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as file:
            file.write(data)
        return
    path = os.path.realpath(path)
    beside = f"{path}.{os.getpid()}.part"
    try:
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError:
        if os.path.exists(beside):
            os.unlink(beside)
        raise
