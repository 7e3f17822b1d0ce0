"""What changes between two versions of an engine, from their profiles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from mlload.profiles.profile import Profile

# Facts of a record that say where it stands, not what it says.
_PLACES = ("file", "line")
_PLACE = re.compile(r"[\w/]+(\.py)?:\d+")


class Change(NamedTuple):
    """subject: "architectures", "quant_methods", "kernels of fp8", ...
    name:    what changed: an architecture, a method, a kernel
    what:    one sentence
    """

    subject: str
    name: str
    what: str


def changes(old: Profile, new: Profile) -> tuple[Change, ...]:
    """Everything that differs, facts first; lines that merely moved do not count."""
    found: list[Change] = []
    for name in sorted(old.facts.keys() | new.facts.keys()):
        found += _fact(name, old.value(name), new.value(name))
    for group in ("linear", "moe"):
        families = old.kernels.get(group, {}).keys() | new.kernels.get(group, {}).keys()
        for family in sorted(families):
            found += _order(f"kernels of {family}", old.order(group, family), new.order(group, family))
    for table in ("min_capability", "constants"):
        before, after = old.kernels.get(table, {}), new.kernels.get(table, {})
        for name in sorted(before.keys() | after.keys()):
            found += _fact(table, _value(before.get(name)), _value(after.get(name)), name)
    return tuple(found)


def _value(entry: dict[str, Any] | None) -> Any:
    return None if entry is None else entry["value"]


def _fact(subject: str, old: Any, new: Any, name: str = "") -> Iterator[Change]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            if key not in new:
                yield Change(subject, key, f"{key} is gone")
            elif key not in old:
                yield Change(subject, key, f"{key} is new")
            else:
                yield from _record(subject, key, old[key], new[key])
    elif isinstance(old, list) and isinstance(new, list) and all(isinstance(item, str) for item in (*old, *new)):
        for key in sorted(set(old) ^ set(new)):
            yield Change(subject, key, f"{key} is {'gone' if key in old else 'new'}")
    elif old != new:
        yield Change(subject, name or subject, f"{name or subject}: {old} becomes {new}")


def _record(subject: str, name: str, old: Any, new: Any) -> Iterator[Change]:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield Change(subject, name, f"{name}: {old} becomes {new}")
        return
    for field in sorted(old.keys() | new.keys()):
        if field in _PLACES or field.endswith("_source"):
            continue
        before, after = _unplaced(old.get(field)), _unplaced(new.get(field))
        if before != after:
            yield Change(subject, name, f"{name}: {field} {before} becomes {after}")


def _unplaced(value: Any) -> Any:
    """The value without the files and lines in it: a class moved within its file has not changed."""
    if isinstance(value, str) and _PLACE.fullmatch(value):
        return True
    if isinstance(value, list):
        return bool(value) if all(_unplaced(item) is True for item in value) else value
    if isinstance(value, dict):
        return {key: _unplaced(item) for key, item in value.items()}
    return value


def _order(subject: str, old: tuple[str, ...], new: tuple[str, ...]) -> Iterator[Change]:
    for kernel in [k for k in old if k not in new]:
        yield Change(subject, kernel, f"{kernel} is gone")
    for kernel in [k for k in new if k not in old]:
        yield Change(subject, kernel, f"{kernel} is new")
    kept = [k for k in old if k in new]
    if kept != [k for k in new if k in old]:
        yield Change(subject, subject, f"the order becomes {', '.join(k for k in new if k in old)}")
