"""Every code that the readers use has a text, and no text is for a code that nothing uses."""

from __future__ import annotations

import re
from pathlib import Path

import mlload.checkpoint
from mlload.checkpoint.codes import CODES

FOLDER = Path(mlload.checkpoint.__file__).parent


def test_codes_and_texts_agree() -> None:
    used = {
        code
        for path in FOLDER.rglob("*.py")
        if path.name != "codes.py"
        for code in re.findall(r'"(FI\d{3})"', path.read_text())
    }
    assert used == CODES.keys()


def test_texts_are_sentences() -> None:
    for code, (title, text) in CODES.items():
        assert re.fullmatch(r"FI\d{3}", code)
        assert not title.endswith(".") and len(title) < 60
        assert text.endswith(".") and len(text) > 80, code
