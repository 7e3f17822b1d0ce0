"""Waivers: findings that somebody has looked at and accepts, with a reason and a last day."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mlload.checkpoint.finding import Finding, Hint, MlloadError

if TYPE_CHECKING:
    from datetime import date

DEFAULTS = {"code": "", "path": "*", "reason": "", "source": "*"}


class Waiver(NamedTuple):
    """code:   of the findings, or the beginning of it
    path:   glob over the place of a finding ("model.layers.*.mlp.down_proj"); "*" fits all
    source: glob over the source, "*" fits all
    reason: why it is accepted
    until:  last day on which it holds; None = it does not expire
    """

    code: str
    path: str
    reason: str
    until: date | None
    source: str = "*"

    def fits(self, finding: Finding, source: str) -> bool:
        from fnmatch import fnmatchcase

        return (
            finding.code.startswith(self.code)
            and fnmatchcase(finding.where, self.path)
            and (self.source == "*" or fnmatchcase(source.rstrip("/"), self.source))
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "path": self.path,
            "reason": self.reason,
            "until": None if self.until is None else self.until.isoformat(),
        }


class Waived(NamedTuple):
    """A finding that does not count, and why."""

    finding: Finding
    waiver: Waiver


def read_waivers(rows: Any, where: str) -> tuple[Waiver, ...]:
    """The `[[waive]]` tables of a settings file. Raises MlloadError for one that says too little."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise MlloadError(f"{where}: waive is a list of tables, each written [[waive]]")
    return tuple(_waiver(row, f"{where}, waiver {number}") for number, row in enumerate(rows, 1))


def _waiver(row: dict[str, Any], where: str) -> Waiver:
    known = {"code", "path", "reason", "until", "source"}
    if extra := sorted(row.keys() - known):
        raise MlloadError(f"{where}: unknown key {extra[0]}; known: {', '.join(sorted(known))}")
    texts = {
        key: row.get(key, default) for key, default in (("code", ""), ("path", "*"), ("reason", ""), ("source", "*"))
    }
    if wrong := [key for key, value in texts.items() if not isinstance(value, str)]:
        raise MlloadError(f"{where}: {wrong[0]} is a string")
    if not texts["code"].strip() or not texts["reason"].strip():
        raise MlloadError(f"{where}: a waiver needs a code and a reason")
    return Waiver(
        texts["code"].strip().upper(), texts["path"], texts["reason"], _day(row.get("until"), where), texts["source"]
    )


def _day(value: Any, where: str) -> date | None:
    if value is None:
        return None
    from datetime import date

    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            raise MlloadError(f"{where}: until is a day such as 2027-01-31, not {value!r}") from None
    if isinstance(value, date):  # a TOML date, or a time on that day
        return date(value.year, value.month, value.day)
    raise MlloadError(f"{where}: until is a day such as 2027-01-31, not {value!r}")


def waive(
    findings: Iterable[Finding], source: str, waivers: Sequence[Waiver], today: date
) -> tuple[list[Finding], list[Waived]]:
    """Findings that count, and those that are waived; of an expired waiver a warning that says so."""
    kept: list[Finding] = []
    waived: list[Waived] = []
    expired: dict[Waiver, int] = {}
    for finding in findings:
        fitting = [waiver for waiver in waivers if waiver.fits(finding, source)]
        valid = next((waiver for waiver in fitting if waiver.until is None or today <= waiver.until), None)
        if valid is not None:
            waived.append(Waived(finding, valid))
            continue
        kept.append(finding)
        for waiver in fitting:
            expired[waiver] = expired.get(waiver, 0) + 1
    return [*kept, *(_expired(waiver, count) for waiver, count in expired.items())], waived


def _expired(waiver: Waiver, count: int) -> Finding:
    assert waiver.until is not None
    message = f"the waiver of {waiver.code} for {waiver.path} ended on {waiver.until}: {count} findings count again"
    return Finding(
        "GT001",
        "warning",
        "right",
        waiver.path,
        message.replace("1 findings count", "1 finding counts"),
        {"code": waiver.code, "until": waiver.until.isoformat(), "findings": count},
        (Hint(f"it was accepted because: {waiver.reason}; give a later day if that still holds"),),
    )
