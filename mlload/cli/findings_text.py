"""Findings as people read them: severity, code and place on one line, then the sentence, then the ways out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mlload.checkpoint.finding import Finding, Hint, Severity
from mlload.cli.layout import cells, shorten, wrap
from mlload.cli.output import Line, Span, Style
from mlload.cli.quantities import plural

STYLES: dict[Severity, Style] = {"error": "bad", "warning": "warn", "info": "accent"}
INDENT = " " * 7


def finding_lines(finding: Finding, width: int, note: str = "", said: set[Hint] | None = None) -> Iterator[Line]:
    """One finding; `note` stands at the end of its first line ("at tp 2, 4, 8"). Hints that are in `said` are
    not said again, and those given here are added to it."""
    head = f"{finding.severity:<7} {finding.code}  "
    room = width - cells(head) - (cells(note) + 2 if note else 0)
    yield [
        Span(f"{finding.severity:<7}", STYLES[finding.severity]),
        " ",
        Span(finding.code, "bold"),
        "  ",
        shorten(finding.where, max(room, 20)),
        Span(f"  {note}" if note else "", "dim"),
    ]
    yield from wrap(sentence(finding.message), width, INDENT + " ")
    for hint in finding.hints:
        if said is not None:
            if hint in said:
                continue
            said.add(hint)
        lines = wrap(advice(hint), width, INDENT + "   ", first=INDENT + " - ")
        if hint.command and cells(lines[-1]) + 2 + cells(hint.command) <= width:
            lines[-1] += f"  {hint.command}"
        elif hint.command:
            lines.append(INDENT + "   " + hint.command)
        yield from lines


def sentence(text: str) -> str:
    """With a full stop, unless it ends in a mark or in something to copy."""
    text = text.strip()
    return text if not text or text[-1] in ".!?:`" or text.endswith(("'", '"')) else text + "."


def advice(hint: Hint) -> str:
    """A hint as a sentence of its own."""
    text = sentence(hint.what)
    if hint.needs == "original weights":
        return f"From the original weights: {text}"
    return text[:1].upper() + text[1:]


def summary(findings: Iterable[Finding]) -> str:
    """ "1 error, 0 warnings"."""
    found = [finding.severity for finding in findings]
    words = [plural(found.count("error"), "error"), plural(found.count("warning"), "warning")]
    if found.count("info"):
        words.append(plural(found.count("info"), "note"))
    return ", ".join(words)


def capped(findings: Sequence[Finding], limit: int) -> tuple[Sequence[Finding], int]:
    """At most `limit` of them, never hiding an error behind a note, and how many are left out."""
    return findings[:limit], max(len(findings) - limit, 0)
