"""Numbers as people read them: bytes in binary units, counts in thousands, millions and billions."""

from __future__ import annotations

from collections.abc import Sequence

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def in_unit(nbytes: int | float, unit: str) -> str:
    """The figure alone, in the unit given, with about three digits: 131.4, 16.4, 0.13."""
    return digits(nbytes / 1024 ** UNITS.index(unit))


def unit_for(nbytes: int | float) -> str:
    """The largest unit in which the figure is at least 1 (rounded)."""
    for unit in reversed(UNITS):
        if nbytes >= 0.9995 * 1024 ** UNITS.index(unit) or unit == "B":
            return unit
    return "B"


def column(values: Sequence[int | float | None], unit: str) -> list[str]:
    """Figures of one column in one unit with equally many decimals; "-" where there is none."""
    scale = 1024 ** UNITS.index(unit)
    figures = [None if value is None else value / scale for value in values]
    there = [figure for figure in figures if figure is not None]
    decimals = 0 if all(figure == int(figure) for figure in there) else 1 if max(there, default=0) >= 10 else 2
    return ["-" if figure is None else f"{figure:,.{decimals}f}" for figure in figures]


def size(nbytes: int | float) -> str:
    """ "131.4 GiB"."""
    unit = unit_for(nbytes)
    return f"{in_unit(nbytes, unit)} {unit}"


def digits(value: float) -> str:
    """A figure that stays readable in a column: one decimal from 10 on, two below, whole where it is whole."""
    if value == int(value) and value < 10_000:
        return str(int(value))
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def count(number: int) -> str:
    """ "70.6 B", "134.5 M", "512"."""
    for limit, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**4, "k")):
        if number >= 0.9995 * limit:
            value = number / (limit if letter != "k" else 1000)
            return f"{value:.3g} {letter}" if value < 1000 else f"{value:.0f} {letter}"
    return str(number)


def percent(part: int | float, whole: int | float) -> str:
    """ "79.9 %"; a part that is there never reads as 0."""
    share = 100 * part / whole if whole else 0.0
    return "<0.1 %" if 0 < share < 0.05 else f"{share:.1f} %"


def plural(number: int, word: str, words: str | None = None) -> str:
    """ "1 file", "30 files"."""
    return f"{number:,} {word if number == 1 else words or word + 's'}"
