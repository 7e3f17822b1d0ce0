"""Lines of a fixed width: wrapped sentences, columns, bars, and names too long for their column."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from mlload.cli.output import Line, Span, Style

# "96 % 5 = 1" and "1.12 MiB" stay on one line.
TOGETHER = re.compile(r"(?<=[0-9]) (?=[%/=x] ?[0-9]|(?:[KMGTP]iB|B|k|M|T)\b)|(?<=[0-9] [%/=x]) (?=[0-9])")
GLUE = "\0"
EIGHTHS = " ▏▎▍▌▋▊▉"
Cell = str | Span


def cells(text: str) -> int:
    """Columns of a terminal that a text takes: two for wide characters, none for combining marks."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def shorten(text: str, width: int) -> str:
    """At most `width` columns, cut in the middle: both ends of a name or a path tell something."""
    if cells(text) <= width:
        return text
    if width < 5:
        return take(text, width)
    head = (width - 1) // 2
    return take(text, head) + "…" + take(text[::-1], width - 1 - head)[::-1]


def take(text: str, width: int) -> str:
    used = 0
    for at, char in enumerate(text):
        used += cells(char)
        if used > width:
            return text[:at]
    return text


def wrap(text: str, width: int, indent: str = "", first: str | None = None) -> list[str]:
    """A sentence over lines of at most `width` columns; a word longer than a line stays whole, so
    that paths and commands can be copied. Sums and sizes are not torn apart."""
    text = " ".join(text.split())
    lines: list[str] = []
    line = indent if first is None else first
    empty = True
    for word in (glued.replace(GLUE, " ") for glued in TOGETHER.sub(GLUE, text).split(" ") if glued):
        if not empty and cells(line) + 1 + cells(word) > width:
            lines.append(line)
            line, empty = indent, True
        line += word if empty else " " + word
        empty = False
    return [*lines, line]


def bar(fraction: float, width: int, unicode: bool) -> str:
    """A horizontal bar of at most `width` columns; anything above zero shows."""
    if not unicode:
        return "#" * max(round(fraction * width), 1 if fraction > 0 else 0)
    eighths = max(round(fraction * width * 8), 1 if fraction > 0 else 0)
    return "█" * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")


def table(rows: Sequence[Sequence[Cell]], right: Sequence[bool] = (), gap: int = 2) -> list[Line]:
    """Rows as aligned columns without rules, so that a line greps as what it says. `right[i]` aligns
    column i to the right."""
    count = max((len(row) for row in rows), default=0)
    widths = [max((cells(plain(row[i])) for row in rows if i < len(row)), default=0) for i in range(count)]
    lines: list[Line] = []
    for row in rows:
        spans: list[Cell] = []
        for i, cell in enumerate(row):
            space = " " * (widths[i] - cells(plain(cell)))
            before, after = (space, "") if i < len(right) and right[i] else ("", space)
            spans += [" " * (gap if i else 0) + before, cell, after]
        lines.append(spans)
    return lines


def plain(cell: Cell) -> str:
    return cell.text if isinstance(cell, Span) else cell


def styled(text: str, style: Style) -> Span:
    return Span(text, style)
