"""JSON from strangers: bounded, with duplicate keys and odd numbers seen, and errors as sentences."""

from __future__ import annotations

import json
from typing import Any

MAX_SIDE_FILE = 16 * 1024 * 1024  # no config or side file that an engine reads is larger


class BadJson(Exception):
    """Why a text is not the JSON that was expected, as the end of a sentence."""


class OddNumber(str):
    """A number that is no plain integer: a float, NaN, -0, or one of more than 30 digits; as written."""

    __slots__ = ()


def parse(raw: bytes) -> Any:
    """Any JSON value, or BadJson. Does not look for duplicate keys."""
    try:
        return json.loads(decode(raw))
    except ValueError as error:
        raise BadJson(describe(error, raw)) from None
    except RecursionError:
        raise BadJson("is nested too deeply") from None


def parse_object(raw: bytes) -> dict[str, Any]:
    """A JSON object, or BadJson."""
    value = parse(raw)
    if not isinstance(value, dict):
        raise BadJson(f"holds {kind_of(value)} where an object {{...}} is expected")
    return value


class StrictObject(dict[str, Any]):
    """An object that remembers which of its keys came twice."""

    duplicates: tuple[str, ...] = ()


def parse_strict(raw: bytes) -> Any:
    """As `parse`, with objects as StrictObject and every number that is no plain integer as OddNumber.

    An order of magnitude slower than `parse`: for texts about which there is a doubt.
    """
    try:
        return json.loads(
            decode(raw),
            object_pairs_hook=_object,
            parse_float=OddNumber,
            parse_constant=OddNumber,
            parse_int=_integer,
        )
    except ValueError as error:
        raise BadJson(describe(error, raw)) from None
    except RecursionError:
        raise BadJson("is nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> StrictObject:
    result = StrictObject(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice: dict[str, None] = {}
        for key, _ in pairs:
            if key in seen:
                twice[key] = None
            seen.add(key)
        result.duplicates = tuple(twice)
    return result


def _integer(text: str) -> int | OddNumber:
    return OddNumber(text) if len(text) > 30 or text == "-0" else int(text)


def decode(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadJson(f"is not UTF-8: byte 0x{raw[error.start]:02x} at position {error.start:,}") from None


def describe(error: ValueError, raw: bytes) -> str:
    """A JSON error as the end of a sentence, with the place and what stands there."""
    if isinstance(error, json.JSONDecodeError):
        near = quote(error.doc[error.pos : error.pos + 24])
        where = f"at character {error.pos:,} of {len(error.doc):,}"
        if error.pos >= len(error.doc.rstrip()):
            return f"is not valid JSON: it breaks off {where}"
        message = error.msg[:1].lower() + error.msg[1:]
        return f"is not valid JSON: {message} {where}, near {near}"
    return f"is not valid JSON: a number of more than {4300:,} digits"


def quote(text: str, limit: int = 60) -> str:
    """A stranger's text, safe to print on one line."""
    shown = text if len(text) <= limit else text[: limit - 3] + "..."
    return ascii(shown) if not shown.isprintable() else f"'{shown}'"


def escape(text: str) -> str:
    """A text with everything that cannot be printed as \\x.., \\u....: file names may hold anything."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def kind_of(value: Any) -> str:
    """A JSON value's type in JSON's own words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, OddNumber):
        return f"the number {quote(str(value), 24)}"
    if isinstance(value, int):
        return f"the number {value}"
    if isinstance(value, float):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the text {quote(value, 40)}"
    return "a list" if isinstance(value, list) else "an object"
