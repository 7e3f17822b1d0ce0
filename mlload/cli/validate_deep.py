"""`validate --deep`, `--manifest`, `--write-manifest`: the bytes behind a checkpoint, and how far they were read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import Finding, MlloadError
from mlload.checkpoint.sources.progress import BETWEEN_SECONDS, QUIET, QUIET_SECONDS, Progress, stderr_progress
from mlload.cli.layout import wrap
from mlload.cli.output import Line
from mlload.cli.quantities import size
from mlload.validators.verdict import Verdict, combine

if TYPE_CHECKING:
    from mlload.cli.validate_result import Entry
    from mlload.plan.plan import Plan
    from mlload.validators.deep.files import Expected
    from mlload.validators.deep.scan import FileSeen, Scan


class Looked(NamedTuple):
    """One checkpoint's pass; `expected`: digests that its files were compared with; `contents`: whether the numbers
    were looked at, or only hashed"""

    scan: Scan
    expected: dict[str, Expected]
    contents: bool


@dataclass(frozen=True, slots=True, eq=False)
class Deep:
    """What was asked. `done`: passes made, by source and revision: several engines ask about the same bytes."""

    contents: bool = False
    manifest: dict[str, str] | None = None
    label: str = ""
    write: Path | None = None
    done: dict[tuple[str, str | None], Looked] = field(default_factory=dict)


def deep_from(contents: bool, manifest: str | None, write: str | None, sources: int) -> Deep | None:
    """What the options ask for, None where they ask for no pass over the bytes."""
    if not (contents or manifest or write):
        return None
    if sources > 1 and (manifest or write):
        raise MlloadError("a manifest belongs to one checkpoint: validate one source at a time with it")
    if contents:
        # Not imported yet: while it is, the disk can be at work.
        from importlib.util import find_spec

        from mlload.validators.deep.scan import no_numpy

        if find_spec("numpy") is None:
            raise no_numpy()
    listed = None
    if manifest is not None:
        from mlload.validators.deep.manifest import read_manifest

        listed = read_manifest(Path(manifest))
    return Deep(contents, listed, manifest or "", None if write is None else Path(write))


def read_ahead(checkpoint: Checkpoint, deep: Deep) -> None:
    """The disk can fetch the first weights while the headers are judged."""
    if deep.contents and (checkpoint.label, checkpoint.revision) not in deep.done:
        from mlload.checkpoint import streaming

        used = {ref.file for ref in checkpoint.tensors.values()}
        streaming.read_ahead(checkpoint.source, [checkpoint.files[number].name for number in sorted(used)])


def with_contents(entries: list[Entry], checkpoint: Checkpoint, deep: Deep) -> list[Entry]:
    """Entries of one source with what its bytes tell."""
    key = (checkpoint.label, checkpoint.revision)
    looked = deep.done.get(key)
    if looked is None:
        looked = deep.done[key] = look(checkpoint, entries, deep)
    from mlload.validators.deep.files import file_findings, unread
    from mlload.validators.deep.judge import judge_contents

    of_files = tuple(file_findings(looked.scan, checkpoint, looked.expected, deep.manifest, deep.label))
    open_files = tuple(unread(looked.scan))
    found = []
    for entry in entries:
        findings, unknowns = of_files, open_files
        if deep.contents:
            judged = judge_contents(looked.scan, checkpoint, plan_of_files(entry))
            findings, unknowns = (*findings, *judged.findings), (*unknowns, *judged.unknowns)
        found.append(replace(entry, verdict=extended(entry.verdict, findings, unknowns), looked=looked))
    return found


def in_ranks(entry: Entry) -> bool:
    return entry.model is not None and entry.model.checkpoint.cut is not None


def plan_of_files(entry: Entry) -> Plan | None:
    """None for a folder of ranks: the plan is of the checkpoint that was cut, whose tensors are not those in the
    files, which are judged by themselves."""
    return None if in_ranks(entry) else entry.plan


def extended(verdict: Verdict, findings: tuple[Finding, ...], unknowns: tuple[Any, ...]) -> Verdict:
    """The verdict with what the bytes tell. Only a finding about starting changes whether the engine starts."""
    compared = any(finding.code == "DP020" for finding in findings)
    before = [finding for finding in verdict.findings if not (compared and finding.code == "CF006")]
    answer = combine([*before, *findings], [*verdict.unknowns, *unknowns])
    refused = any(finding.severity == "error" and finding.question == "starts" for finding in findings)
    return replace(
        verdict,
        findings=answer.findings,
        unknowns=answer.unknowns,
        verdict=answer.verdict,
        starts=False if refused else verdict.starts,
    )


def look(checkpoint: Checkpoint, entries: list[Entry], deep: Deep) -> Looked:
    """The pass. Writes the manifest, where one is asked for."""
    from mlload.validators.deep.files import expected_digests
    from mlload.validators.deep.roles import roles, without_model
    from mlload.validators.deep.scan import Asked, bytes_to_read, scan

    expected = expected_digests(checkpoint, deep.manifest, deep.label)
    if deep.write is not None:
        mine = os.path.realpath(deep.write)
        path = getattr(checkpoint.source, "path", None)
        hashed = {f.name for f in checkpoint.files if path is None or os.path.realpath(path(f.name)) != mine}
    else:
        hashed = set(expected)
    model = entries[0].model if entries and not in_ranks(entries[0]) else None
    known = without_model(checkpoint.tensors) if model is None else roles(model)
    asked = Asked(deep.contents, frozenset(hashed))
    if checkpoint.source.remote and not os.environ.get(QUIET):
        nbytes = bytes_to_read(checkpoint, asked)
        print(f"reading {size(nbytes)} of {checkpoint.label} over the network, keeping nothing", file=sys.stderr)
    show = Pace(stderr_progress())
    try:
        seen = scan(checkpoint, known, asked, tick=show)
    finally:
        show.clear()
    if deep.write is not None:
        write(deep.write, seen)
    return Looked(seen, expected, deep.contents)


def write(path: Path, seen: Scan) -> None:
    from mlload.validators.deep.manifest import write_manifest

    for file in seen.files:
        if file.problem is not None or file.changed:
            why = file.problem or "it changed meanwhile"
            raise MlloadError(f"{path} is not written: {file.name} was not read to its end ({why})", exit_code=3)
    write_manifest(path, {file.name: file.sha256 for file in seen.files if file.sha256 is not None})


class Pace:
    """Bytes, speed and time left on one line of stderr, after a second."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._next = QUIET_SECONDS
        self._shown = False

    def __call__(self, done: int, seconds: float, total: int) -> None:
        if self._progress is None or seconds < self._next or not done:
            return
        self._next, self._shown = seconds + BETWEEN_SECONDS, True
        left = (total - done) * seconds / done
        self._progress(
            f"reading {done / 1e9:.1f} of {total / 1e9:.1f} GB, {done / seconds / 1e9:.2f} GB/s, {duration(left)} left"
        )

    def clear(self) -> None:
        if self._shown and self._progress is not None:
            self._progress("")


def duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def lines(looked: Looked | None, width: int) -> Iterator[Line]:
    """One sentence on what was read and compared."""
    if looked is None:
        return
    files, streamed = looked.scan.files, looked.scan.streamed
    what = f"read {size(streamed.nbytes)} in {len(files)} file{'s' if len(files) != 1 else ''}"
    if streamed.seconds > 0:
        what += f", {streamed.seconds:.1f} s, {streamed.nbytes / streamed.seconds / 1e9:.2f} GB/s"
    told = [what]
    by = sorted({entry.by for entry in looked.expected.values()})
    if by:
        agree = sum(agrees(file, looked) is True for file in files)
        told.append(f"sha256 of {agree} of {len(looked.expected)} files agrees with {' and '.join(by)}")
    elif looked.contents:
        told.append("no digests to compare with (--manifest FILE)")
    yield from wrap("; ".join(told), width)


def agrees(file: FileSeen, looked: Looked) -> bool | None:
    """Whether the digest is the expected one; None where there is nothing to compare."""
    expected = looked.expected.get(file.name)
    return None if expected is None or file.sha256 is None else file.sha256 == expected.digest


def as_json(looked: Looked | None, checkpoint: Checkpoint | None) -> dict[str, Any] | None:
    """The `deep` block."""
    if looked is None or checkpoint is None:
        return None
    tensors: dict[str, int] = {}
    spoiled: dict[str, int] = {}
    for name, seen in looked.scan.tensors.items():
        file = checkpoint.files[checkpoint.tensors[name].file].name
        tensors[file] = tensors.get(file, 0) + 1
        spoiled[file] = spoiled.get(file, 0) + bool(seen.nan or seen.inf)
    streamed = looked.scan.streamed
    return {
        "contents": looked.contents,
        "bytes": streamed.nbytes,
        "seconds": round(streamed.seconds, 3),
        "gb_per_s": round(streamed.nbytes / streamed.seconds / 1e9, 3) if streamed.seconds > 0 else None,
        "threads": streamed.threads,
        "files": [
            file_json(file, looked, tensors.get(file.name, 0), spoiled.get(file.name, 0)) for file in looked.scan.files
        ],
    }


def file_json(file: FileSeen, looked: Looked, tensors: int, not_finite: int) -> dict[str, Any]:
    expected = looked.expected.get(file.name)
    same = agrees(file, looked)
    bad = same is False or file.changed or not_finite > 0
    return {
        "name": file.name,
        "bytes": file.nbytes,
        "verdict": "fail" if bad else "unknown" if file.problem is not None else "ok",
        "tensors": tensors,
        "tensors_not_finite": not_finite,
        "sha256": file.sha256,
        "expected": None if expected is None else expected.digest,
        "expected_by": None if expected is None else expected.by,
        "changed": file.changed,
        "problem": file.problem,
    }
