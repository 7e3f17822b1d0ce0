"""Words of a command line as the engine's own parser reads them (vLLM utils/argparse_utils.py FlexibleArgumentParser).

Nothing raises: what the engine would refuse is a finding, and the flag is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mlload.checkpoint.finding import Finding, Hint
from mlload.profiles.serve_flags import Flag, FlagTable

_NUMBER = re.compile(r"-(\d+|\d*\.\d+)")
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_LEVEL = re.compile(r"-O(=?)(.+)")
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


class Given(NamedTuple):
    """One flag of a command line.

    name:  its long name without dashes; the words themselves where the engine knows no such flag
    words: as typed, the flag and its values
    value: read as its type: int, float, str, bool, list, or what its JSON says
    known: the engine has such a flag
    """

    name: str
    words: tuple[str, ...]
    value: Any
    known: bool = True


class Words(NamedTuple):
    """positional: words that belong to no flag; given: flags in order; findings: what the engine would refuse."""

    positional: tuple[str, ...]
    given: tuple[Given, ...]
    findings: tuple[Finding, ...]


def read_words(words: Sequence[str], table: FlagTable) -> Words:
    """Flags, their values and the words between them."""
    positional: list[str] = []
    given: list[Given] = []
    findings: list[Finding] = []
    at = 0
    while at < len(words):
        taken, found, problem = read_one(words, at, table)
        if found is None:
            positional.append(words[at])
        else:
            given.append(found)
        if problem is not None:
            findings.append(problem)
        at += taken
    return Words(tuple(positional), tuple(merged(given)), tuple(findings))


def read_one(words: Sequence[str], at: int, table: FlagTable) -> tuple[int, Given | None, Finding | None]:
    """The flag that starts at one word: how many words it takes, the flag (None for a plain word), what is wrong."""
    word = words[at]
    if not _is_flag(word):
        return 1, None, None
    level = _LEVEL.fullmatch(word)
    if level and not word.startswith("--") and "." not in word:
        return 1, Given("optimization-level", (word,), level[2]), None
    spelling, equals, inline = word.partition("=")
    dotted = spelling.split(".", 1)[0] if "." in spelling else ""
    flag = table.find(dotted or spelling)
    if flag is None and word == "-O":
        flag = table.find("--optimization-level")
    if flag is None:
        taken = 1 if equals else 1 + len(list(_values(words, at + 1, 1)))
        return taken, Given(spelling, tuple(words[at : at + taken]), None, known=False), unknown(spelling, table)
    if flag.takes == "switch":
        problem = refused(flag, spelling, inline, "takes no value") if equals else None
        return 1, Given(flag.name, (word,), not flag.negated), problem
    texts = [inline] if equals else list(_values(words, at + 1, None if flag.takes == "list" else 1))
    taken = 1 if equals else 1 + len(texts)
    typed = tuple(words[at : at + taken])
    if not texts:
        if flag.takes == "optional":
            return taken, Given(flag.name, typed, True), None
        return taken, Given(flag.name, typed, None), refused(flag, spelling, "", "needs a value")
    if dotted:
        return taken, Given(flag.name, typed, nested(spelling.split(".")[1:], texts[0])), None
    try:
        values = [typed_value(flag, text) for text in texts]
    except ValueError as error:
        return taken, Given(flag.name, typed, None), refused(flag, spelling, " ".join(texts), str(error))
    return taken, Given(flag.name, typed, values if flag.takes == "list" else values[0]), None


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and not _NUMBER.fullmatch(word) and " " not in word.split("=")[0]


def _values(words: Sequence[str], start: int, most: int | None) -> Iterator[str]:
    for word in words[start : None if most is None else start + most]:
        if _is_flag(word):
            return
        yield word


def typed_value(flag: Flag, text: str) -> Any:
    """A value as its type. Raises ValueError with what it would have to be."""
    kind = flag.type
    try:
        if kind == "human int":
            value: Any = human_int(text)
        elif kind in ("int", "float"):
            value = int(text) if kind == "int" else float(text)
        elif kind == "json" or (kind == "json or text" and text.lstrip().startswith("{")):
            value = json.loads(text)
        else:
            value = text
    except (ValueError, RecursionError):
        words = {"json": "JSON", "json or text": "JSON", "float": "a number"}
        raise ValueError(f"takes {words.get(kind, 'a whole number')}") from None
    if flag.choices and value not in flag.choices and value not in ("None", ""):
        raise ValueError(f"takes {', '.join(map(str, flag.choices))}")
    return value


def human_int(text: str) -> int:
    """ "32k" -> 32000, "32K" -> 32768, "25.6k" -> 25600; "auto" -> -1. Raises ValueError."""
    text = text.strip()
    if text.lower() == "auto":
        return -1
    found = _HUMAN.fullmatch(text)
    if found is None:
        return int(text)
    number, suffix = found.groups()
    power = _POWERS[suffix.lower()]
    return int(float(number) * 1000**power) if suffix.islower() else int(number) * 1024**power


def nested(keys: Sequence[str], text: str) -> Any:
    """`--flag.a.b 3` -> {"a": {"b": 3}}; a key that ends in + takes a list."""
    if keys[-1].endswith("+"):
        value: Any = [_loose(part) for part in text.split(",")]
        keys = [*keys[:-1], keys[-1][:-1]]
    else:
        value = _loose(text)
    for key in reversed(keys):
        value = {key: value}
    return value


def _loose(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        try:
            return human_int(text) if text.lower() != "auto" else text
        except ValueError:
            return text


def merged(given: Sequence[Given]) -> Iterator[Given]:
    """Dicts of the same flag are put together, as dotted spellings give them piece by piece."""
    dicts: dict[str, Any] = {}
    for entry in given:
        if isinstance(entry.value, dict):
            dicts[entry.name] = deep_update(dicts.get(entry.name, {}), entry.value)
    for entry in given:
        yield entry._replace(value=dicts[entry.name]) if isinstance(entry.value, dict) else entry


def deep_update(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    found = dict(old)
    for key, value in new.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = deep_update(found[key], value) if both else value
    return found


def unknown(spelling: str, table: FlagTable) -> Finding:
    near = table.near(spelling)
    what = "flag" if spelling.startswith("-") else "place for the word"
    message = f"vLLM {table.version} has no {what} {spelling}, and does not start with one that it does not know"
    hints = (Hint(f"did you mean {' or '.join(near)}?"),) if near else (Hint("leave it out"),)
    return Finding("EN050", "error", "starts", spelling, message, {"flag": spelling}, hints)


def refused(flag: Flag, spelling: str, value: str, why: str) -> Finding:
    message = f"{spelling} {why}" + (f", not {value!r}" if value else "")
    return Finding("EN051", "error", "starts", spelling, message, {"flag": flag.name, "value": value})
