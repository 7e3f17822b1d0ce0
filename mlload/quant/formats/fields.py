"""Fields of a quantization config, read without trusting their types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def integer(config: Mapping[str, Any], *names: str, default: int | None = None) -> int | None:
    """The first of `names` that holds a whole number (true and false do not count; "4" does)."""
    for name in names:
        value = config.get(name)
        if isinstance(value, str) and value.lstrip("-").isdigit() and len(value) < 10:
            value = int(value)
        if isinstance(value, float) and value.is_integer() and abs(value) < 1e9:
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**9:
            return value
    return default


def width(config: Mapping[str, Any], *names: str, allowed: tuple[int, ...], default: int) -> int:
    """Bits of a value: what is declared, `default` where that is nothing that can be stored so."""
    value = integer(config, *names)
    return value if value in allowed and value is not None else default


def positive(config: Mapping[str, Any], *names: str, default: int) -> int:
    value = integer(config, *names)
    return value if value is not None and value > 0 else default


def flag(config: Mapping[str, Any], *names: str, default: bool = False) -> bool:
    for name in names:
        value = config.get(name)
        if isinstance(value, bool):
            return value
    return default


def text(config: Mapping[str, Any], *names: str, default: str = "") -> str:
    for name in names:
        value = config.get(name)
        if isinstance(value, str) and value:
            return value
    return default


def strings(config: Mapping[str, Any], *names: str) -> tuple[str, ...]:
    """The first of `names` that holds a non-empty list; strings of it, nested lists flattened. A lone string
    counts as a list of one."""
    for name in names:
        found = tuple(_flatten(config.get(name), 4))
        if found:
            return found
    return ()


def mapping(config: Mapping[str, Any], *names: str) -> dict[str, Any]:
    for name in names:
        value = config.get(name)
        if isinstance(value, dict) and value:
            return value
    return {}


def pair(value: Any) -> tuple[int, int] | None:
    """Two positive sizes: [128, 128], "128x128"."""
    if isinstance(value, str):
        value = value.lower().split("x")
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        return None
    sizes = [integer({"value": item}, "value") for item in value]
    if any(size is None or size <= 0 for size in sizes):
        return None
    return (int(sizes[0] or 0), int(sizes[1] or 0))


def _flatten(value: Any, depth: int) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)) and depth:
        for item in value:
            yield from _flatten(item, depth - 1)
