"""`validate --batch FILE`: many sources in one go, each answer kept as soon as it is there."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.progress import QUIET
from mlload.cli.batch_workers import answer_all

if TYPE_CHECKING:
    from mlload.cli.validate_result import Question, ValidateResult

SCHEMA_VERSION = 1
# What changes how an answer is shown or kept, and not the answer.
BESIDE = ("batch", "jobs", "answers", "form", "output", "strict", "allow_unknown")
# A lock and a list of digests are about one source.
NOT_HERE = ("lock", "manifest", "write_manifest")


@dataclass(frozen=True, slots=True)
class Batch:
    """Answers in the order of the list, each a JSON object (see docs/schema-validate.md).

    question:   what was asked of all of them
    kept:       how many were there from an earlier run
    """

    question: Question
    answers: tuple[dict[str, Any], ...]
    kept: int

    def exit_code(self, *, strict: bool, allow_unknown: bool) -> int:
        words = {word_of(answer) for answer in self.answers}
        if "fail" in words or (strict and "warn" in words):
            return 1
        return 3 if "unknown" in words and not allow_unknown else 0


def word_of(answer: Mapping[str, Any]) -> str:
    """The worst verdict of one source; one that could not be opened is unknown."""
    words = {size["verdict"] for size in answer["sizes"]}
    return next((word for word in ("fail", "unknown", "warn") if word in words), "ok" if words else "unknown")


def run(
    ctx: click.Context,
    values: Mapping[str, Any],
    answer: Callable[[Sequence[str]], ValidateResult],
    question: Question,
    show: Callable[[str], None] | None,
) -> Batch:
    """Asks every source of the list that has no answer yet. Raises MlloadError for a list that cannot be read."""
    for name in NOT_HERE:
        if values[name]:
            raise MlloadError(f"--{name.replace('_', '-')} is about one source, and --batch about many")
    if values["form"] not in ("text", "json"):
        raise MlloadError(f"--batch answers as text or json, not {values['form']}")
    sources = read_list(values["batch"])
    path = values["answers"] or (None if values["batch"] == "-" else values["batch"] + ".answers.jsonl")
    asked = digest(ctx, values)
    journal = Journal(path, asked)
    wanted = set(sources)
    found = {source: kept for source, kept in journal.read() if source in wanted}
    before = len(found)
    left = [source for source in sources if source not in found]
    pace = Pace(show, len(sources), before)
    try:
        for one in answer_all(left, lambda source: ask(source, answer), jobs_of(values["jobs"])):
            record = one.answer or could_not(one.question, f"could not be judged: {one.died}")
            found[one.question] = record
            journal.write(record)
            pace.step(record)
    except KeyboardInterrupt:
        pace.close()
        said = f"{len(found):,} of {len(sources):,} sources have their answer"
        raise MlloadError(
            f"interrupted; {said}" + (f" in {path}" if path else ""),
            hint="The same command goes on from there." if path else None,
            exit_code=130,
        ) from None
    pace.close()
    return Batch(question, tuple(found[source] for source in sources), before)


def read_list(path: str) -> list[str]:
    """Sources, one a line, each once; "#" begins a comment, "-" is stdin."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise MlloadError(f"cannot read {path}: {why}", hint="a list has one source a line") from error
    lines = (line.partition(" #")[0].strip() for line in text.splitlines())
    sources = list(dict.fromkeys(line for line in lines if line and not line.startswith("#")))
    if not sources:
        raise MlloadError(f"{path} names no source", hint="a list has one source a line")
    return sources


def jobs_of(text: str | None) -> int:
    """Most of the time of a remote source is waiting: more processes than cores."""
    if text is None:
        return min(16, 4 * (os.cpu_count() or 1))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 256:
        raise MlloadError(f"-j takes a number of processes from 1 to 256, not {text!r}")
    return int(text)


def digest(ctx: click.Context, values: Mapping[str, Any]) -> str:
    """Stands for everything that an answer depends on but the source: options, settings, engine, our version."""
    from hashlib import sha256

    from mlload import __version__
    from mlload.cli.serve_command import META

    asked = {name: values[name] for name in sorted(values) if name not in BESIDE}
    text = json.dumps([__version__, asked, repr(ctx.meta[META])], default=repr)
    return sha256(text.encode()).hexdigest()[:16]


def ask(source: str, answer: Callable[[Sequence[str]], ValidateResult]) -> dict[str, Any]:
    """In a worker: one source judged, as it is kept."""
    import gc

    os.environ[QUIET] = "1"  # several workers on one line of a terminal would be unreadable
    start = time.monotonic()
    try:
        record = record_of(source, answer([source]))
    except MlloadError as error:
        record = could_not(source, error.message)
    except Exception as error:
        record = could_not(source, f"internal error: {type(error).__name__}: {error}")
    gc.collect()
    return {**record, "seconds": round(time.monotonic() - start, 3)}


def record_of(source: str, result: ValidateResult) -> dict[str, Any]:
    from mlload.cli.validate_text import codes, largest_rank

    sizes = [
        {
            "tp": entry.mesh.tp,
            "pp": entry.mesh.pp,
            "ep": entry.mesh.ep,
            "dp": entry.mesh.dp,
            "starts": entry.verdict.starts,
            "verdict": entry.verdict.verdict,
            "fits": entry.verdict.fits,
            "weight_bytes": largest_rank(entry),
            "codes": [] if codes(entry) == "-" else codes(entry).split(),
            "why": next(
                (found.message for found in entry.verdict.findings if found.severity == "error"),
                next((unknown.why for unknown in entry.verdict.unknowns), None),
            ),
        }
        for entry in result.entries
    ]
    checkpoint = result.entries[0].checkpoint
    revision = None if checkpoint is None else checkpoint.revision
    return {"source": source, "revision": revision, "error": None, "sizes": sizes}


def could_not(source: str, why: str) -> dict[str, Any]:
    return {"source": source, "revision": None, "error": why, "sizes": []}


class Journal:
    """Answers on disk, one JSON object a line, added to as they come. A line that a killed run left half is nothing."""

    def __init__(self, path: str | None, asked: str) -> None:
        self.path = path
        self.asked = asked

    def read(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Answers to the same question. What could not be opened is asked again: it may be there now."""
        if self.path is None or not os.path.exists(self.path):
            return
        with self.opened("rb") as file:
            for line in file:
                try:
                    record = json.loads(line)
                    source, same = record["source"], record["asked"] == self.asked
                except (ValueError, KeyError, TypeError):
                    continue
                if same and record["error"] is None:
                    del record["asked"]
                    yield source, record

    def write(self, record: Mapping[str, Any]) -> None:
        if self.path is None:
            return
        line = json.dumps({"asked": self.asked, **record}).encode() + b"\n"
        with self.opened("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    line = b"\n" + line
            file.write(line)

    def opened(self, mode: str) -> Any:
        assert self.path is not None
        try:
            return open(self.path, mode)
        except OSError as error:
            raise MlloadError(
                f"cannot keep answers in {self.path}: {error.strerror}", hint="--answers FILE, a place to write to"
            ) from error


class Pace:
    """A line that says how far a batch is, how fast, and how long it still takes."""

    EVERY_SECONDS = 0.2

    def __init__(self, show: Callable[[str], None] | None, total: int, done: int) -> None:
        self.show, self.total, self.before, self.done, self.failed = show, total, done, done, 0
        self.start = time.monotonic()
        self.next = self.start + 1.0

    def step(self, record: Mapping[str, Any]) -> None:
        self.done += 1
        self.failed += word_of(record) == "fail"
        now = time.monotonic()
        if self.show is not None and now >= self.next:
            self.next = now + self.EVERY_SECONDS
            rate = (self.done - self.before) / (now - self.start)
            self.show(
                f"{self.done:,} of {self.total:,} sources, {self.failed:,} refused, {rate:,.1f} a second, "
                f"{(self.total - self.done) / rate:,.0f} s left"
            )

    def close(self) -> None:
        if self.show is not None:
            self.show("")
