"""The sentences of a report, for the screen and for Markdown alike."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mlload.quantize.report import Result

SHOWN = 3  # names, before an ellipsis
PROBLEMS = 20
WARNINGS = 4


class Spread(NamedTuple):
    """Of relative errors: the one in the middle, the largest, and whose that is."""

    what: str
    middle: float
    worst: float
    path: str


def spreads(result: Result) -> list[Spread]:
    """Of weights, of linears' outputs, and of what whole layers add (on held-out samples), as far as measured."""
    found = []
    weights, layers = ({}, {}) if result.check is None else (result.check.errors, result.check.outputs)
    for what, values in (("weights", weights), ("outputs", result.outputs), ("layers", layers)):
        ordered = sorted(values.items(), key=lambda item: item[1])
        if ordered:
            path, worst = ordered[-1]
            found.append(Spread(what, ordered[len(ordered) // 2][1], worst, path))
    return found


def carried(result: Result) -> Iterator[str]:
    """What stays as it is."""
    for reason, paths in result.kept.items():
        yield f"left alone, {reason}: {some(paths)}"
    for rule, names in result.kept_tensors.items():
        yield f"kept byte by byte, {rule}: {some(names)}"


def measured(result: Result) -> Iterator[str]:
    """Data, experts, and what could not be done as well as hoped."""
    if result.calibration:
        yield f"calibrated on {result.calibration['tokens']:,} tokens of {result.calibration['source']}"
    if result.experts:
        yield _experts(result)
    yield from alike(result.notes)
    if result.resumed:
        yield "went on from an interrupted run"
    if result.quality:
        quality = result.quality
        yield (
            f"perplexity {quality['perplexity_before']:.3f} before, {quality['perplexity_after']:.3f} after; "
            f"KL {quality['kl']:.4f} ({quality['tokens']:,} tokens of {quality['source']})"
        )


def _experts(result: Result) -> str:
    counts = [count for layer in result.experts.values() for count in layer["tokens"]]
    few = [f"{path}.{number}" for path, layer in result.experts.items() for number in layer["borrowed"]]
    line = (
        f"{len(counts)} experts in {len(result.experts)} layers, each on the tokens that chose it: "
        f"{min(counts):,} to {max(counts):,}"
    )
    if few:
        line += (
            f"; warning: {len(few)} saw too few and were measured on other tokens as well ({some(few, count=False)}); "
            "more --samples would help"
        )
    return line


def judged(result: Result) -> Iterator[str]:
    """What the check at the end found."""
    check = result.check
    if check is None:
        if result.written:
            yield "not read back (--no-check)"
        return
    for line in check.warnings[:WARNINGS]:
        yield f"warning: {line}"
    for line in check.problems[:PROBLEMS]:
        yield f"error: {line}"
    sizes = ", ".join(map(str, check.tp))
    verdict = "not what was planned" if check.problems else "as planned"
    yield f"{check.quantized} of {check.planned} linears read back, {verdict}; mlload validate at tp {sizes}"


def alike(notes: tuple[str, ...]) -> Iterator[str]:
    """Notes that differ in numbers alone are told once."""
    groups: dict[str, list[str]] = {}
    for note in notes:
        groups.setdefault(re.sub(r"\d+", "0", note), []).append(note)
    for members in groups.values():
        more = f" (and {len(members) - 1} more like it)" if len(members) > 1 else ""
        yield members[0] + more


def some(names: list[str], *, count: bool = True) -> str:
    shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    return f"{len(names)} ({shown})" if count else shown
