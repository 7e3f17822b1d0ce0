"""Markdown for a pull request, an issue or a step summary: the answers as a table, then every finding."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mlload.cli.report import Case, Report, Reported, way_out

STARTS = {True: "yes", False: "no", None: "unknown"}
SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~])")


def render(report: Report) -> str:
    return "\n".join([*lines(report)]) + "\n"


def lines(report: Report) -> Iterator[str]:
    words = {case.verdict for case in report.cases}
    worst = next((word for word in ("fail", "unknown", "warn", "ok") if word in words), "ok")
    yield f"### mlload {report.command}: {worst}"
    yield ""
    yield f"For {text(report.engine)}."
    yield ""
    yield "| source | size | starts | verdict | why |"
    yield "|---|---|---|---|---|"
    for case in report.cases:
        yield f"| {code(case.source)} | {case.size} | {STARTS[case.starts]} | {case.verdict} | {why(case)} |"
    if report.counting:
        yield ""
        yield "| | code | where | what |"
        yield "|---|---|---|---|"
        for entry in report.counting:
            yield row(entry)
    unknowns = dict.fromkeys(unknown for case in report.cases for unknown in case.unknowns)
    if unknowns:
        yield ""
        for unknown in unknowns:
            yield f"- not judged: {text(unknown.what)}: {text(unknown.why)}"
    if report.waived:
        yield ""
        for entry in report.waived:
            assert entry.waiver is not None
            until = f" until {entry.waiver.until}" if entry.waiver.until else ""
            yield f"- waived{until}: {entry.title} {code(entry.finding.where)} ({text(entry.waiver.reason)})"
    for note in report.notes:
        yield ""
        yield f"{text(note.partition(': ')[0])}:" if ": " in note else text(note)
        if ": " in note:
            yield ""
            yield "    " + " ".join(note.partition(": ")[2].split("\n"))


def why(case: Case) -> str:
    severe = [f.code for f in case.findings if f.severity == "error"] or [
        f.code for f in case.findings if f.severity == "warning"
    ]
    return " ".join(dict.fromkeys(severe)) or "-"


def row(entry: Reported) -> str:
    finding = entry.finding
    said = text(finding.message)
    for hint in finding.hints:
        said += f"<br>{way_out(hint, text, code)}"
    return f"| {finding.severity} | {text(entry.title)} | {code(finding.where)} | {said} |"


def text(words: str) -> str:
    """Plain words: nothing in them is markup, and they stay in their cell."""
    return SPECIAL.sub(r"\\\1", " ".join(words.split()))


def code(words: str) -> str:
    """As code; a table's "|" cannot stand in it unescaped."""
    clean = " ".join(words.split()).replace("|", "\\|")
    ticks = "`" * (max((len(run) for run in re.findall("`+", clean)), default=0) + 1)
    pad = " " if clean.startswith("`") or clean.endswith("`") else ""
    return f"{ticks}{pad}{clean}{pad}{ticks}" if clean else ""
