"""Where everything that a person sees goes through.

Data goes to stdout; hints, errors and progress go to stderr. Colour only on a terminal, never
with NO_COLOR or TERM=dumb. Names in a checkpoint are somebody else's text: control characters
are escaped before they reach a terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from itertools import groupby
from math import isfinite
from typing import Any, Literal, NamedTuple, TextIO

Style = Literal["", "bold", "dim", "good", "warn", "bad", "accent"]

ANSI: dict[str, str] = {"bold": "1", "dim": "2", "good": "32", "warn": "33", "bad": "1;31", "accent": "36"}

# What our own text uses beyond ASCII, and what stands for it where the encoding has no such thing.
ASCII = str.maketrans({"█": "#", "▉": "#", "▊": "#", "▋": "#", "▌": "=", "▍": "-", "▎": "-", "▏": "-", "…": "~"})

# C0 and C1 controls, and the marks that reorder what a terminal shows.
UNSAFE = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for code in (*range(32), *range(127, 160), 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
}

DEFAULT_WIDTH = 80
MAX_WIDTH = 120
MIN_WIDTH = 40


class Span(NamedTuple):
    """A piece of a line in one style."""

    text: str
    style: Style = ""


Line = str | Span | Iterable[str | Span]


class Output:
    """One per process, handed to commands as `ctx.obj`: `print` for data, `note` and `error` for people."""

    def __init__(
        self, stdout: TextIO, stderr: TextIO, *, width: int = DEFAULT_WIDTH, color: bool = False, unicode: bool = True
    ) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self.width = width
        self.color = color
        self.unicode = unicode
        self.quiet = False  # no remarks on stderr
        self.pending: list[tuple[TextIO, str]] = []
        self.kept: list[object] = []  # large things that need not be taken apart before the process ends

    @classmethod
    def from_environment(cls) -> Output:
        stdout, stderr = sys.stdout, sys.stderr
        for stream in (stdout, stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        terminal = stdout.isatty()
        color = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        encoding = (getattr(stdout, "encoding", None) or "ascii").lower().replace("-", "").replace("_", "")
        return cls(stdout, stderr, width=screen_width(terminal), color=color, unicode=encoding.startswith("utf"))

    def render(self, line: Line) -> str:
        """One line as the stream should receive it: escaped, styled, in its encoding."""
        spans = (line,) if isinstance(line, str | Span) else line
        text = "".join(self.paint(span) for span in spans)
        return (text if self.unicode else text.translate(ASCII)).rstrip()

    def paint(self, span: str | Span) -> str:
        text, style = span if isinstance(span, Span) else (span, "")
        text = text.translate(UNSAFE)
        return f"\x1b[{ANSI[style]}m{text}\x1b[0m" if self.color and style and text else text

    def print(self, line: Line = "") -> None:
        self.pending.append((self.stdout, self.render(line) + "\n"))

    def print_all(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self.print(line)

    def write(self, document: str) -> None:
        """A whole machine-readable document, untouched."""
        self.pending.append((self.stdout, document if document.endswith("\n") else document + "\n"))

    def json(self, document: Any) -> None:
        """One JSON document; what JSON has no form for becomes its text."""
        import json

        try:
            text = json.dumps(document, indent=2, default=str, allow_nan=False)
        except ValueError:  # a config may hold 1e999
            text = json.dumps(finite(document), indent=2, default=str)
        self.write(text)

    def note(self, text: str) -> None:
        """For people, beside the data."""
        if not self.quiet:
            self.say(text)

    def error(self, message: str, hint: str | None = None) -> None:
        self.say(f"mlload: {message}")
        if hint:
            self.say(f"        try: {hint}" if not hint[:1].isupper() else f"        {hint}")

    def say(self, text: str) -> None:
        self.pending.append((self.stderr, text.translate(UNSAFE) + "\n"))

    @property
    def document(self) -> str:
        """What stdout would receive."""
        return "".join(text for stream, text in self.pending if stream is self.stdout)

    def close(self) -> None:
        """Write all of it, in order. Only here can a closed pipe be met, outside of any command."""
        pending, self.pending = self.pending, []
        for stream, texts in groupby(pending, key=lambda entry: entry[0]):
            stream.write("".join(text for _, text in texts))
            stream.flush()

    def abandon(self) -> int:
        """The reader of our pipe has gone (`| head`): say nothing, and end as a killed writer would."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def finite(value: Any) -> Any:
    """JSON has no word for what is no finite number: "inf" and "nan" stand for them."""
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def screen_width(terminal: bool) -> int:
    """Columns to fill: COLUMNS, else the terminal's, else 80."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        width = int(columns)
    elif terminal:
        try:
            width = os.get_terminal_size(sys.stdout.fileno()).columns or DEFAULT_WIDTH
        except OSError:
            width = DEFAULT_WIDTH
    else:
        width = DEFAULT_WIDTH
    return max(MIN_WIDTH, min(width, MAX_WIDTH))
