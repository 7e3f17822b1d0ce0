"""A `ValidateResult` as the `Report` that SARIF, JUnit, GitHub annotations and Markdown are made from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlload.checkpoint.finding import Finding
from mlload.cli.places import place_of
from mlload.cli.report import Case, Report, Reported
from mlload.cli.validate_result import Entry, ValidateResult, offered, serve_command
from mlload.cli.validate_text import by_source, engine_label
from mlload.gate.waivers import Waiver


def report(result: ValidateResult, *, strict: bool, allow_unknown: bool) -> Report:
    sources = by_source(result)
    return Report(
        command="validate",
        engine=engine_label(result),
        cases=tuple(case(entry, result) for entry in result.entries),
        findings=tuple(found for entries in sources for found in reported(entries)),
        notes=tuple(notes(result)),
        strict=strict,
        allow_unknown=allow_unknown,
    )


def case(entry: Entry, result: ValidateResult) -> Case:
    verdict = entry.verdict
    gpu = (entry.question or result.question).gpu
    label = entry.mesh.label() + (f" on {gpu.name}" if gpu is not None else "")
    return Case(entry.source, label, verdict.starts, verdict.verdict, verdict.findings, verdict.unknowns)


def reported(entries: Sequence[Entry]) -> Iterator[Reported]:
    """Each finding of one source once, with the sizes that it holds for where that is not all."""
    rows: dict[tuple[str, str, Waiver | None], tuple[Finding, list[str]]] = {}
    for entry in entries:
        found: list[tuple[Finding, Waiver | None]] = [(finding, None) for finding in entry.verdict.findings]
        found += [(waived.finding, waived.waiver) for waived in entry.waived]
        for finding, waiver in found:
            _, sizes = rows.setdefault((finding.code, finding.where, waiver), (finding, []))
            if entry.mesh.label() not in sizes:
                sizes.append(entry.mesh.label())
    first = entries[0]
    for (_, _, waiver), (finding, sizes) in rows.items():
        at = tuple(sizes) if len(sizes) < len(entries) else ()
        yield Reported(finding, first.source, at, place_of(finding, first.checkpoint, first.source), waiver)


def notes(result: ValidateResult) -> Iterator[str]:
    for flag in result.not_judged:
        yield f"not judged: {flag}"
    if result.question.profile.engine == "vllm":
        for entries in by_source(result):
            command = serve_command(offered(entries), result.question)
            if command is not None:
                yield f"would start: {command}"
