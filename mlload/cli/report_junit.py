"""JUnit XML: a suite per source, a test case per size. What could not be judged is an error, not a failure."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.cli.report import Case, Report

# What XML 1.0 has no way to write.
FORBIDDEN = {code: f"\\x{code:02x}" for code in range(32) if code not in (9, 10, 13)} | {
    0xFFFE: "\\ufffe",
    0xFFFF: "\\uffff",
    **{code: f"\\u{code:04x}" for code in range(0xD800, 0xE000)},
}
MARKUP = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;"}
SPACES = {ord('"'): "&quot;", 9: "&#9;", 10: "&#10;", 13: "&#13;"}


def render(report: Report) -> str:
    sources: dict[str, list[Case]] = {}
    for case in report.cases:
        sources.setdefault(case.source, []).append(case)
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f"<testsuites {counts(report.cases, report)}>"]
    for source, cases in sources.items():
        lines.append(
            f"  <testsuite name={attribute(f'mlload {report.command} {source}')} {counts(tuple(cases), report)}>"
        )
        for case in cases:
            lines += test(case, report)
        lines.append("  </testsuite>")
    return "\n".join([*lines, "</testsuites>"]) + "\n"


def counts(cases: tuple[Case, ...], report: Report) -> str:
    kinds = [kind(case, report) for case in cases]
    words = {"tests": len(kinds), "failures": kinds.count("failure"), "errors": kinds.count("error")}
    words["skipped"] = kinds.count("skipped")
    return " ".join(f'{name}="{count}"' for name, count in words.items())


def kind(case: Case, report: Report) -> str:
    """ "failure", "error", "skipped" or "": as the exit code would have it."""
    if case.verdict == "fail" or (case.verdict == "warn" and report.strict):
        return "failure"
    if case.verdict == "unknown":
        return "skipped" if report.allow_unknown else "error"
    return ""


def test(case: Case, report: Report) -> Iterator[str]:
    yield f"    <testcase classname={attribute(case.source)} name={attribute(f'{report.engine}, {case.size}')}>"
    outcome = kind(case, report)
    severe = [f for f in case.findings if f.severity == "error" or (report.strict and f.severity == "warning")]
    if outcome == "failure":
        first = severe[0]
        head = f"{first.code} {first.where}: {first.message}"
        body = "\n".join(f"{f.severity} {f.code} {f.where}: {f.message}" for f in severe)
        yield f"      <failure type={attribute(first.code)} message={attribute(head)}>{clean(body)}</failure>"
    elif outcome:
        why = "; ".join(f"{unknown.what}: {unknown.why}" for unknown in case.unknowns)
        kind_of = ' type="unknown"' if outcome == "error" else ""
        yield f"      <{outcome}{kind_of} message={attribute(why)}/>"
    if rest := [f"{f.severity} {f.code} {f.where}: {f.message}" for f in case.findings if f not in severe]:
        yield f"      <system-out>{clean(chr(10).join(rest))}</system-out>"
    yield "    </testcase>"


def clean(text: str) -> str:
    return text.translate(FORBIDDEN | MARKUP)


def attribute(text: str) -> str:
    """In quotes; line ends as references, which a reader would else turn into spaces."""
    return '"' + text.translate(FORBIDDEN | MARKUP | SPACES) + '"'
