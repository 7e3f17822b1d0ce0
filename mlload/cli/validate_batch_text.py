"""Many sources in one table, the answer first; and the same as one JSON document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from mlload.cli.layout import Cell, shorten, table, wrap
from mlload.cli.output import Line, Span
from mlload.cli.quantities import plural
from mlload.cli.validate_batch import SCHEMA_VERSION, Batch, word_of
from mlload.cli.validate_result import ValidateResult
from mlload.cli.validate_text import SIZES_ABREAST, WORDS, asked
from mlload.plan.mesh import Mesh

MOST_CODES = 8
MOST_ERRORS = 20


def render(batch: Batch, width: int) -> Iterator[Line]:
    question = batch.question
    yield Span(plural(len(batch.answers), "source"), "bold")
    yield from asked(list(question.meshes), ValidateResult(question, ()), width)
    yield ""
    yield from rows(batch, width)
    yield ""
    yield from not_judged(batch, width)
    yield from causes(batch, width)
    yield from by_size(batch)
    if batch.kept:
        yield Span(f"{plural(batch.kept, 'answer')} kept from an earlier run", "dim")


def rows(batch: Batch, width: int) -> Iterator[Line]:
    """One row a source with a column for each size, or a row for each where they are many."""
    meshes = batch.question.meshes
    abreast = len(meshes) <= SIZES_ABREAST
    titles = ["source", *([mesh.label() for mesh in meshes] if abreast else ["size", "verdict"]), "why"]
    lines: list[list[Cell]] = [[Span(title, "bold") for title in titles]]
    room = width // 2
    for answer in batch.answers:
        name = shorten(answer["source"], room)
        sizes = answer["sizes"]
        if not sizes:
            blanks = ["-"] * (len(meshes) if abreast else 2)
            lines.append([name, *blanks, "not judged"])
        elif abreast:
            codes = dict.fromkeys(code for size in sizes for code in size["codes"])
            lines.append([name, *(word(size) for size in sizes), " ".join(codes) or "-"])
        else:
            lines += [[name, label(size), word(size), " ".join(size["codes"]) or "-"] for size in sizes]
    yield from table(lines)


def by_size(batch: Batch) -> Iterator[Line]:
    """How many start, with warnings or without, at each size that was asked."""
    titles = ("size", "ok", "warn", "fail", "unknown")
    rows_: list[list[Cell]] = [[Span(title, "bold") for title in titles]]
    for at, mesh in enumerate(batch.question.meshes):
        counts = Counter(answer["sizes"][at]["verdict"] if answer["sizes"] else "unknown" for answer in batch.answers)
        rows_.append([mesh.label(), *(f"{counts[word]:,}" for word in titles[1:])])
    yield from table(rows_, right=[False, True, True, True, True], gap=3)


def not_judged(batch: Batch, width: int) -> Iterator[Line]:
    """Why sources have no answer; the rest of many is in the JSON."""
    failed = [answer for answer in batch.answers if answer["error"] is not None]
    for answer in failed[:MOST_ERRORS]:
        name = shorten(answer["source"], width // 2)
        yield from wrap(f"{name}: {answer['error']}", width, " " * 4, first="")
    if len(failed) > MOST_ERRORS:
        yield f"and {len(failed) - MOST_ERRORS:,} more (--format json has all)"
    if failed:
        yield ""


def causes(batch: Batch, width: int) -> Iterator[Line]:
    """What stands behind most refusals, by how many sources it concerns."""
    counts = Counter(
        code
        for answer in batch.answers
        for code in {code for size in answer["sizes"] if size["verdict"] == "fail" for code in size["codes"]}
    )
    if not counts:
        return
    from mlload.cli.rules import all_rules

    titles = {rule.code: rule.title for rule in all_rules()}
    rows_: list[list[Cell]] = [[Span(word, "bold") for word in ("cause", "sources", "")]]
    for code, count in counts.most_common(MOST_CODES):
        rows_.append([code, f"{count:,}", shorten(titles.get(code, ""), max(20, width - 18))])
    yield from table(rows_, right=(False, True, False))
    yield ""


def word(size: Mapping[str, Any]) -> Span:
    return Span(size["verdict"], WORDS[size["verdict"]][1])


def label(size: Mapping[str, Any]) -> str:
    return Mesh(tp=size["tp"], pp=size["pp"], ep=size["ep"], dp=size["dp"]).label()


def document(batch: Batch) -> dict[str, Any]:
    profile = batch.question.profile
    counts = Counter(word_of(answer) for answer in batch.answers)
    return {
        "schema_version": SCHEMA_VERSION,
        "command": "validate --batch",
        "engine": {"name": profile.engine, "version": profile.version, "assumed": dict(profile.assumed)},
        "counts": {word: counts[word] for word in ("ok", "warn", "fail", "unknown")},
        "answers": list(batch.answers),
    }
