"""Which codes count: `--select` and `--ignore`, by code or by the beginning of one ("TP", "TN0")."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mlload.checkpoint.finding import Finding, MlloadError


class Selection(NamedTuple):
    """select: only these; () = all. ignore: but not these."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def counts(self, finding: Finding) -> bool:
        """The longer beginning decides where both name a code: --ignore TP --select TP021 keeps TP021."""
        wanted = max((len(code) for code in self.select if finding.code.startswith(code)), default=-1)
        unwanted = max((len(code) for code in self.ignore if finding.code.startswith(code)), default=-1)
        if unwanted >= 0:
            return wanted > unwanted
        return wanted >= 0 or not self.select


def read_codes(texts: Iterable[str], option: str, known: Iterable[str]) -> tuple[str, ...]:
    """ "TP021,TN" -> ("TP021", "TN"). Raises MlloadError for what no code begins with."""
    codes = tuple(word.strip().upper() for text in texts for word in text.split(",") if word.strip())
    names = tuple(known)
    for code in codes:
        if not any(name.startswith(code) for name in names):
            from difflib import get_close_matches

            near = get_close_matches(code, names, n=3, cutoff=0.6)
            raise MlloadError(
                f"{option}: no rule's code begins with {code}" + (f"; near it are {', '.join(near)}" if near else ""),
                hint="mlload rules",
            )
    return codes
