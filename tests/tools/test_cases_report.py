"""Every publicly reported fault has a test that names it, or a reason why it has none."""

from __future__ import annotations

import ast

import pytest

from tools.cases_report import ELSEWHERE, NAMED, ROOT, SECTIONS, claims, numbers

CASES = {case for _, cases in SECTIONS.values() for case in cases}


def test_none_is_without_a_test_or_a_reason() -> None:
    held = {entry.case for entry in claims()}
    assert CASES - held == set(ELSEWHERE)


def test_tests_named_in_the_table_are_there() -> None:
    missing = []
    for test in (test for tests in NAMED.values() for test in tests):
        path, _, function = test.partition("::")
        if f"\ndef {function}(" not in (ROOT / path).read_text(encoding="utf-8"):
            missing.append(test)
    assert missing == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def test_case_47_and_49_lists():\n    pass", {47, 49}),
        ("def test_case_116_me003_too_high():\n    pass", {116}),
        ('def test_scales():\n    """Bf16 scales (cases 77 and 139)."""', {77, 139}),
        ('def test_scales():\n    """In case nothing is there."""', set()),
    ],
)
def test_how_a_test_names_its_case(source: str, expected: set[int]) -> None:
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    assert numbers(function) == expected
