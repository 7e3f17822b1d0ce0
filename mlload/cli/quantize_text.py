"""What `mlload quantize` prints for people."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mlload.cli.layout import shorten, table, wrap
from mlload.cli.output import Line, Span
from mlload.quantize.report_lines import carried, judged, measured, spreads

if TYPE_CHECKING:
    from mlload.quantize.report import Result

INDENT = "  "


def render(result: Result, reports: Sequence[str] | None, width: int) -> Iterator[Line]:
    head, _, rest = result.headline.partition(": ")
    first, *more = wrap(rest, width, INDENT, first=" " * (len(head) + 2))
    yield [Span(head, "bold"), f"  {first.strip()}"]
    yield from more
    yield from _sentence(f"method {result.recipe.method}, saved as {result.recipe.save_as} in {result.output}", width)
    yield from _sentence(result.sizes + (f", took {result.seconds:,.0f} s" if result.written else ""), width)
    errors = spreads(result)
    if errors:
        yield ""
        rows: list[list[str | Span]] = [["  relative error", Span("middle", "dim"), Span("worst", "dim"), ""]]
        room = max(20, width - 44)
        for error in errors:
            rows.append([f"  of {error.what}", f"{error.middle:.4f}", f"{error.worst:.4f}", shorten(error.path, room)])
        yield from table(rows, right=(False, True, True, False))
    for block in (measured(result), carried(result), judged(result)):
        lines = list(block)
        if lines:
            yield ""
        for line in lines:
            yield from _sentence(line, width)
    if reports:
        yield from _sentence(f"report: {', '.join(reports)}", width)
    if result.written and result.exit_code == 0:
        sizes = "" if result.tp == (1,) else f" --tp {','.join(map(str, result.tp))}"
        yield f"  next: mlload validate {shlex.quote(result.output)}{sizes}"


def _sentence(text: str, width: int) -> Iterator[Line]:
    style = {"error": "bad", "warning": "warn"}.get(text.partition(":")[0])
    first, *rest = wrap(text, width, INDENT * 2, first=INDENT)
    if style == "bad":
        yield [INDENT, Span("error", "bad"), first[len(INDENT) + 5 :]]
    elif style == "warn":
        yield [INDENT, Span("warning", "warn"), first[len(INDENT) + 7 :]]
    else:
        yield first
    yield from rest
