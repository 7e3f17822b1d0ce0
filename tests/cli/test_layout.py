from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlload.cli.layout import bar, cells, shorten, table, wrap
from mlload.cli.quantities import column, count, percent, size


@given(st.text(), st.integers(1, 60))
def test_a_shortened_name_fits(text: str, width: int) -> None:
    assert cells(shorten(text, width)) <= width


def test_both_ends_of_a_long_name_stay() -> None:
    name = shorten("model.layers." + "9" * 200 + ".down_proj", 40)
    assert name.startswith("model.layers.") and name.endswith(".down_proj") and "…" in name


@given(st.lists(st.text(st.characters(categories=["L"]), min_size=1, max_size=12), min_size=1), st.integers(20, 80))
def test_wrapping_keeps_every_word_and_the_width(words: list[str], width: int) -> None:
    lines = wrap(" ".join(words), width, indent="   ")
    assert " ".join(lines).split() == words
    assert all(cells(line) <= width or len(line.split()) == 1 for line in lines)


def test_wide_characters_take_two_columns() -> None:
    assert cells("模型") == 4
    assert shorten("模型模型模型", 7) == "模…型"


@pytest.mark.parametrize(("fraction", "blocks"), [(0.0, ""), (1e-6, "▏"), (0.5, "█████"), (1.0, "██████████")])
def test_a_bar_shows_whatever_is_there(fraction: float, blocks: str) -> None:
    assert bar(fraction, 10, unicode=True) == blocks


def test_columns_line_up() -> None:
    lines = ["".join(str(piece) for piece in line) for line in table([["a", "1"], ["bbb", "22"]], right=[False, True])]
    assert lines == ["a     1", "bbb  22"]


def test_figures() -> None:
    # By hand: 141,107,412,992 / 2**30 = 131.42; 1023.97 KiB reads as 1 MiB, not as 1,024 KiB.
    assert size(141_107_412_992) == "131.4 GiB"
    assert size(1024 * 1024 - 100) == "1.00 MiB"
    assert size(512) == "512 B"
    assert count(70_553_706_496) == "70.6 B"
    assert count(134_515_008) == "135 M"
    assert count(999) == "999"
    assert percent(1, 1_000_000) == "<0.1 %"
    assert percent(0, 10) == "0.0 %"
    assert column([105 * 2**30, 2**31, None], "GiB") == ["105", "2", "-"]
    assert column([2**30 * 10.5, 2**29], "GiB") == ["10.5", "0.5"]


def test_sums_and_sizes_are_not_torn() -> None:
    assert wrap("96 q output channels do not divide by tp 5: 96 % 5 = 1 in all", 50) == [
        "96 q output channels do not divide by tp 5:",
        "96 % 5 = 1 in all",
    ]
    assert wrap("it weighs 1.12 MiB", 14) == ["it weighs", "1.12 MiB"]
