"""From what was found to what counts: findings of the command line and of a lock, selection, waivers; and the lock."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from typing import Any

from mlload.checkpoint.finding import Finding, MlloadError
from mlload.checkpoint.sources.progress import stderr_progress
from mlload.cli.generations import Generation
from mlload.cli.validate_result import Entry, Question
from mlload.gate.selection import Selection
from mlload.gate.waivers import Waiver, waive
from mlload.profiles.profile import Profile
from mlload.validators.context import Request
from mlload.validators.verdict import Verdict, combine

# Fields of a request that a lock holds elsewhere.
ELSEWHERE = ("capability", "gpu", "memory_gib", "options")


@dataclass(frozen=True, slots=True)
class Gate:
    """What counts. `line`: what the engine would refuse about its own command line."""

    selection: Selection
    waivers: tuple[Waiver, ...]
    line: tuple[Finding, ...]
    today: date


def sifted(entry: Entry, gate: Gate, more: Iterable[Finding] = ()) -> Entry:
    """One entry with every finding that counts, and a verdict by these alone. A waiver or a selection changes what
    counts, never what the engine does: `starts` stays."""
    verdict = entry.verdict
    everything = [*gate.line, *more, *verdict.findings]
    selected = [finding for finding in everything if gate.selection.counts(finding)]
    kept, waived = waive(selected, entry.source, gate.waivers, gate.today)
    refusals = [f.code for f in gate.line if f.question == "starts" and f.severity == "error"]
    answer = combine(kept, verdict.unknowns)
    return replace(
        entry,
        verdict=replace(
            verdict, findings=answer.findings, verdict=answer.verdict, starts=False if refusals else verdict.starts
        ),
        generations=tuple(refused_row(row, refusals) for row in entry.generations) if refusals else entry.generations,
        waived=tuple(waived),
        ignored=len(everything) - len(selected),
    )


def refused_row(row: Generation, refusals: Sequence[str]) -> Generation:
    """A GPU's row where the engine refuses its own command line: no GPU changes that."""
    before = row.codes if row.verdict == "fail" else ()
    return row._replace(starts=False, verdict="fail", codes=tuple(dict.fromkeys((*refusals, *before))))


def flags_of(question: Question) -> dict[str, Any]:
    """What the engine was asked with beyond sizes and GPU, by long names; defaults left out."""
    plain = Request()
    found: dict[str, Any] = {}
    for field in fields(Request):
        value = getattr(question.asked, field.name)
        if field.name not in ELSEWHERE and value != getattr(plain, field.name):
            found[field.name.replace("_", "-")] = value if isinstance(value, bool | int | float | str) else str(value)
    if question.assume_quant is not None:
        found["assume-quant"] = question.assume_quant
    if question.hf_overrides:
        found["hf-overrides"] = question.hf_overrides
    return found


def compare(entries: Sequence[Entry], path: str, profile: Profile, alone: bool) -> list[list[Finding]]:
    """What changed since the lock at `path` was written, for each entry of one source.

    What concerns the source as a whole is found at each of its sizes, like any other fault of its files. alone:
    no other source was asked about.
    """
    from mlload.gate.against import changed_answer, changed_engine, changed_files, changed_flags, changed_origin
    from mlload.gate.digests import digests
    from mlload.gate.lock import model_of, read_lock

    lock = read_lock(path)
    first = entries[0]
    model = model_of(lock, first.source, alone)
    if model is None:
        text = f"{first.source} is not in the lock {path}"
        return [[Finding("LK005", "error", "content", first.source, text)]] * len(entries)
    everywhere = list(changed_engine(lock, profile))
    if first.question is not None:
        everywhere += changed_flags(model, flags_of(first.question))
    if first.checkpoint is not None:
        everywhere += changed_origin(model, first.checkpoint.revision)
        everywhere += changed_files(model, digests(first.checkpoint, stderr_progress()))
    return [[*everywhere, *changed_answer(model, judged(entry))] for entry in entries]


def write_lock(entries: Sequence[Entry], path: str, profile: Profile) -> None:
    """What was approved, as JSON, whole or not at all."""
    from mlload.cli.report import write_atomically
    from mlload.gate.digests import digests
    from mlload.gate.lock import Approved, document

    approved = []
    for group in by_source(entries):
        first = group[0]
        if first.checkpoint is None or first.question is None:
            raise MlloadError(f"{first.source} could not be read: there is nothing to approve", exit_code=3)
        approved.append(
            Approved(
                source=first.source,
                revision=first.checkpoint.revision,
                files=digests(first.checkpoint, stderr_progress()),
                judged=tuple(judged(entry) for entry in group),
                flags=flags_of(first.question),
            )
        )
    try:
        write_atomically(path, json.dumps(document(approved, profile), indent=1) + "\n")
    except OSError as error:
        raise MlloadError(f"cannot write {path}: {error.strerror}") from error


def judged(entry: Entry) -> Any:
    from mlload.gate.lock import Judged

    gpu = None if entry.question is None or entry.question.gpu is None else entry.question.gpu.key
    verdict: Verdict = entry.verdict
    return Judged(entry.mesh, gpu, verdict.starts, verdict.verdict, verdict.findings, entry.waived)


def by_source(entries: Sequence[Entry]) -> list[list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.source, []).append(entry)
    return list(found.values())
