"""What the pass remembers of one tensor: a few numbers, whatever its size. Parts seen by several threads add up."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

KEEP = 64  # positions of zero scales
COUNTS = ("elements", "nbytes", "nan", "inf", "denormal", "sampled", "saturated", "empty", "wrong", "borrowed")


class Seen:
    """elements: looked at; nbytes: of them
    positive, negative: the largest finite magnitude bits on either side of zero; of integers, positive alone is used
    nan, inf, first_bad: counts, and the element number of the first of either
    low, high:  the smallest and largest raw bits (scales and integers); None where not taken
    zeros, zero_at: zero scales and the numbers of the first KEEP; denormal: scales too small to be normal
    sampled, saturated: codes looked at, and those at the end of their range
    empty: bytes in runs of zeros of at least 16 KiB; first_empty: where the first begins
    head: the first words of a tensor of packed zero points
    wrong, first_wrong: entries of a g_idx that are not k // G, and where the first is
    borrowed: zero points that decode to 0 under a label that stores z - 1
    """

    __slots__ = (
        "borrowed", "denormal", "elements", "empty", "first_bad", "first_empty", "first_wrong", "head", "high", "inf",
        "low", "nan", "nbytes", "negative", "positive", "sampled", "saturated", "wrong", "zero_at", "zeros",
    )  # fmt: skip

    def __init__(self) -> None:
        self.elements = self.nbytes = 0
        self.positive = self.negative = 0
        self.nan = self.inf = 0
        self.first_bad: int | None = None
        self.low: int | None = None
        self.high: int | None = None
        self.zeros = self.denormal = 0
        self.zero_at: list[int] = []
        self.sampled = self.saturated = 0
        self.empty = 0
        self.first_empty: int | None = None
        self.head: tuple[int, ...] = ()
        self.wrong = self.borrowed = 0
        self.first_wrong: int | None = None

    @property
    def magnitude(self) -> int:
        return max(self.positive, self.negative)

    @property
    def all_zero(self) -> bool:
        return self.elements > 0 and not (self.positive or self.negative or self.nan or self.inf)

    @property
    def constant(self) -> bool:
        return self.low is not None and self.low == self.high

    def bad(self, nan: int, inf: int, first: int) -> None:
        self.nan += nan
        self.inf += inf
        self.first_bad = earlier(self.first_bad, first)

    def range(self, low: int, high: int) -> None:
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)

    def zero(self, count: int, at: Iterable[int]) -> None:
        self.zeros += count
        for number in at:
            insort(self.zero_at, number)
        del self.zero_at[KEEP:]

    def add(self, other: Seen) -> None:
        """Take in what another thread saw of the same tensor."""
        for name in (
            "elements",
            "nbytes",
            "nan",
            "inf",
            "denormal",
            "sampled",
            "saturated",
            "empty",
            "wrong",
            "borrowed",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.positive, self.negative = max(self.positive, other.positive), max(self.negative, other.negative)
        if other.low is not None and other.high is not None:
            self.range(other.low, other.high)
        self.zero(other.zeros, other.zero_at)
        self.head = self.head or other.head
        for name in ("first_bad", "first_empty", "first_wrong"):
            setattr(self, name, earlier(getattr(self, name), getattr(other, name)))


def earlier(one: int | None, other: int | None) -> int | None:
    """The smaller of two positions, either of which may be none."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
