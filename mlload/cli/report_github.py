"""GitHub Actions: a workflow command per finding, and the Markdown report in the step's summary."""

from __future__ import annotations

import os

from mlload.checkpoint.finding import MlloadError, Severity
from mlload.cli.report import Report, Reported, way_out

COMMANDS: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "notice"}
# The order matters: "%" first.
DATA = (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"))
PROPERTY = (*DATA, (":", "%3A"), (",", "%2C"))


def render(report: Report) -> str:
    """Workflow commands. Appends to the file that GITHUB_STEP_SUMMARY names, where it is set."""
    lines = [command(entry) for entry in report.counting]
    for case in report.cases:
        for unknown in case.unknowns:
            text = f"{case.source} at {case.size}: {unknown.what} could not be judged: {unknown.why}"
            lines.append(f"::warning title=not judged::{escaped(text, DATA)}")
    lines = list(dict.fromkeys(lines))
    summarize(report)
    verdicts = ", ".join(f"{case.source} at {case.size}: {case.verdict}" for case in report.cases)
    # Never at the start of a line: a source may be called what a workflow command is.
    return "\n".join([*lines, f"mlload: {' '.join(escaped(verdicts, DATA).split())}"]) + "\n"


def command(entry: Reported) -> str:
    properties = {"title": entry.title}
    # An annotation can stand at a file of the repository only.
    if entry.place.path is not None and not os.path.isabs(entry.place.path):
        properties = {"file": entry.place.path, **properties}
    words = ",".join(f"{name}={escaped(value, PROPERTY)}" for name, value in properties.items())
    ways = [way_out(hint) for hint in entry.finding.hints]
    text = "\n".join([entry.text, *ways])
    return f"::{COMMANDS[entry.finding.severity]} {words}::{escaped(text, DATA)}"


def escaped(text: str, table: tuple[tuple[str, str], ...]) -> str:
    for char, code in table:
        text = text.replace(char, code)
    return text


def summarize(report: Report) -> None:
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    from mlload.cli.report_markdown import render as markdown

    try:
        with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(markdown(report) + "\n")
    except OSError as error:
        raise MlloadError(f"cannot write the step summary {path}: {error.strerror}") from error
