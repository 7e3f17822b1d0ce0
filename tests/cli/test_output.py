"""What may reach a terminal, and what may not."""

from __future__ import annotations

import io
import json

import pytest

from mlload.cli.output import Output, Span


def make(*, color: bool = False, unicode: bool = True) -> Output:
    return Output(io.StringIO(), io.StringIO(), color=color, unicode=unicode)


def test_plain_output_has_no_escapes() -> None:
    assert make().render(["a", Span("b", "bad"), Span("c", "bold")]) == "abc"


def test_styles_wrap_only_their_own_text() -> None:
    assert make(color=True).render([Span("no", "bad"), " at tp 8"]) == "\x1b[1;31mno\x1b[0m at tp 8"


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("nul\x00", "nul\\x00"),
        ("two\nlines", "two\\x0alines"),
        ("\u202egpj.exe", "\\u202egpj.exe"),
        ("c1\x9b31m", "c1\\x9b31m"),
    ],
)
def test_names_cannot_steer_a_terminal(hostile: str, shown: str) -> None:
    for color in (False, True):
        out = make(color=color)
        assert out.render(hostile) == shown
        assert shown in out.render(Span(hostile, "dim"))


def test_ascii_stands_in_where_the_encoding_has_no_blocks() -> None:
    assert make(unicode=False).render("██▌ a…b") == "##= a~b"


def test_nothing_is_written_before_close() -> None:
    out = make()
    out.print("one")
    assert out.stdout.getvalue() == ""  # type: ignore[attr-defined]
    out.close()
    out.close()
    assert out.stdout.getvalue() == "one\n"  # type: ignore[attr-defined]


def test_notes_go_to_stderr() -> None:
    out = make()
    out.error("no such folder", "mlload demo")
    out.close()
    assert out.stdout.getvalue() == ""  # type: ignore[attr-defined]
    assert out.stderr.getvalue() == "mlload: no such folder\n        try: mlload demo\n"  # type: ignore[attr-defined]


def test_json_is_json_whatever_a_config_holds() -> None:
    out = make()
    out.json({"numbers": {"value": json.loads("1e999"), "pair": (float("nan"), 1.5)}})

    def refused(word: str) -> None:
        raise AssertionError(word)

    assert json.loads(out.document, parse_constant=refused) == {"numbers": {"value": "inf", "pair": ["nan", 1.5]}}
