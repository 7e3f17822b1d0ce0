"""`mlload load-test` for programs: JUnit, workflow annotations, one page."""

from __future__ import annotations

from html import escape
from typing import Any
from xml.sax.saxutils import quoteattr

from mlload.cli.load_test_text import render
from mlload.cli.output import Span


def junit(documents: list[dict[str, Any]]) -> str:
    """One test case a load format."""
    failed = sum(1 for one in documents if one["failures"])
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuite name="mlload load-test" tests="{len(documents)}" failures="{failed}">',
    ]
    for one in documents:
        name = quoteattr(f"{one['source']} {one['load_format']} tp {one['tp']}")
        lines.append(f'  <testcase classname="mlload.load-test" name={name} time="{one["load_seconds"]:.3f}">')
        lines += [f"    <failure message={quoteattr(failure)}/>" for failure in one["failures"]]
        lines.append("  </testcase>")
    return "\n".join((*lines, "</testsuite>"))


def github(documents: list[dict[str, Any]]) -> str:
    """An annotation for each failure, else a notice."""
    lines = []
    for one in documents:
        title = f"mlload load-test {one['load_format']}"
        for failure in one["failures"]:
            lines.append(f"::error title={_escaped(title)}::{_escaped(failure)}")
        if not one["failures"]:
            lines.append(
                f"::notice title={_escaped(title)}::loaded in {one['load_seconds']:.1f} s, "
                f"{one['read_gb_per_s']:.2f} GB/s"
            )
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def page(documents: list[dict[str, Any]]) -> str:
    """The text report, self-contained."""
    body = []
    for one in documents:
        lines = []
        for line in render(one):
            spans = (line,) if isinstance(line, str | Span) else line
            lines.append("".join(escape(span if isinstance(span, str) else span.text) for span in spans))
        body.append(f"<pre>{chr(10).join(lines)}</pre>")
    title = escape(str(documents[0]["source"]))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>mlload load-test {title}</title>'
        "<style>body{font:14px system-ui;margin:2em}pre{font:13px ui-monospace,monospace}</style>"
        f"<h1>mlload load-test</h1>{''.join(body)}</html>\n"
    )
