"""What a plan could not judge."""

from __future__ import annotations

from typing import NamedTuple


class Unknown(NamedTuple):
    """what: the question that stays open; why: what is missing; how_to_know: what would answer it."""

    what: str
    why: str
    how_to_know: str
