"""`mlload diff`: what two checkpoints have that differs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from mlload.cli import options
from mlload.cli.layout import cells, wrap
from mlload.cli.output import Output

if TYPE_CHECKING:
    from mlload.writer.diff import Diff, TensorDifference
    from mlload.writer.numbers import Distance

SHOWN = 20
EXAMPLES = """\b
mlload diff ./llama-8b ./llama-8b-awq
mlload diff org/name@v1 org/name@v2 --format json
mlload diff ./llama-8b ./llama-8b-tp4
"""


@click.command(epilog=EXAMPLES)
@click.argument("one", metavar="A")
@click.argument("other", metavar="B")
@options.text_or_json
@click.pass_context
def command(ctx: click.Context, one: str, other: str, form: str) -> None:
    """Compare tensors, numbers, config and files of two checkpoints.

    Numbers are those that quantized weights stand for. Reads all weights of both. A folder of ranks
    (mlload shard --tp) is compared as the checkpoint that it makes. Exit code 1 when they differ,
    3 where a damaged file hides whether they do.
    """
    from mlload.checkpoint.checkpoint import Checkpoint
    from mlload.writer.diff import diff

    out: Output = ctx.obj
    left, right = Checkpoint.open(one), Checkpoint.open(other)
    found = diff(left, right)
    if form == "json":
        out.json({"schema_version": 1, "command": "diff", "a": one, "b": other, "same": found.same, **document(found)})
    else:
        out.print_all(lines(found, out.width))
        names = {one: left.format, other: right.format}
        if list(names.values()).count("gguf") == 1 and not found.same:
            (gguf,) = (source for source, form in names.items() if form == "gguf")
            out.note(
                f"{gguf} has GGUF's names; mlload convert {shlex.quote(gguf)} -o FOLDER gives it those of the other"
            )
    ctx.exit(1 if not found.same else 3 if found.broken else 0)


def document(found: Diff) -> dict[str, Any]:
    """The result for programs."""
    return {
        "equal_tensors": found.equal,
        "tensors": [_tensor(entry) for entry in found.tensors],
        "weights": [_tensor(entry) for entry in found.weights],
        "config": [{"key": entry.name, "a": entry.one, "b": entry.other} for entry in found.config],
        "files": [{"file": entry.name, "a": entry.one, "b": entry.other} for entry in found.files],
        "not_whole": [{"a": entry.one, "b": entry.other} for entry in found.broken],
        "layout": [{"what": entry.name, "a": entry.one, "b": entry.other} for entry in found.layout],
    }


def _tensor(entry: TensorDifference) -> dict[str, Any]:
    far = entry.distance
    return {
        "name": entry.name,
        "what": entry.what,
        "a": entry.one,
        "b": entry.other,
        "max_difference": far.largest if far else None,
        "relative_difference": far.relative if far else None,
    }


def lines(found: Diff, width: int) -> Iterator[str]:
    """The result for people: what differs by kind, the first of each by name."""
    for fault in found.broken:
        for side, message in (("A", fault.one), ("B", fault.other)):
            if message:
                yield f"{side} is not whole: {message}"
    if found.same:
        what = "the same as far as they can be read" if found.broken else "the same"
        yield f"{what}: {found.equal:,} tensors with equal bytes, config and {'other ' if found.layout else ''}files"
        yield from (f"  but other {entry.name}: {entry.one} -> {entry.other}" for entry in found.layout)
        return
    yield f"{found.equal:,} tensors are equal, {len(found.tensors):,} differ"
    kinds: dict[str, list[TensorDifference]] = {}
    for entry in found.tensors:
        kinds.setdefault(entry.what, []).append(entry)
    for what, entries in kinds.items():
        yield f"{what}: {len(entries):,}"
        yield from _some([(entry.name, f"{_sides(entry)}{_far(entry.distance)}") for entry in entries], width)
    if found.weights:
        yield f"weights by their numbers: {len(found.weights):,}"
        yield from _some([(entry.name, f"{_sides(entry)}{_far(entry.distance)}") for entry in found.weights], width)
    for title, differences in (("config", found.config), ("files", found.files)):
        if differences:
            yield f"{title}: {len(differences):,}"
            yield from _some([(one.name, f"{one.one or '-'} -> {one.other or '-'}") for one in differences], width)


def _some(entries: list[tuple[str, str]], width: int) -> Iterator[str]:
    """Names, and behind each what differs, or below it where the line is too short."""
    for name, what in entries[:SHOWN]:
        line = f"  {name}  {what}"
        yield from [line] if cells(line) <= width else [f"  {name}", *wrap(what, width, "      ")]
    if len(entries) > SHOWN:
        yield f"  ... and {len(entries) - SHOWN:,} more (--format json lists all)"


def _sides(entry: TensorDifference) -> str:
    if not entry.one or not entry.other or entry.one == entry.other:
        return entry.one or entry.other
    return f"{entry.one} -> {entry.other}"


def _far(far: Distance | None) -> str:
    if far is None:
        return ""
    relative = "" if far.relative is None else f", {far.relative:.2%} relative"
    return f"  max difference {far.largest:.4g}{relative}"
