"""The registry of rules: one function a rule, one stable code, one text that explains it.

A rule is a generator of findings over a `Context`. Its docstring is what `mlload rules CODE`
shows and what docs/rules.md is made of. Rules never stop each other: one that breaks becomes an
unknown of the verdict, the others go on.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from typing import NamedTuple, TypeVar

from mlload.checkpoint.finding import Finding
from mlload.validators.context import Context

Check = Callable[[Context], Iterator[Finding]]
Result = TypeVar("Result")

# Family -> the modules that hold its rules; imported when the rules are run or explained.
FAMILIES: dict[str, tuple[str, ...]] = {
    "CF": ("mlload.validators.config", "mlload.validators.activation", "mlload.validators.field_types"),
    "DR": ("mlload.validators.speculative",),
    "DT": ("mlload.validators.dtypes",),
    "FI": (
        "mlload.validators.tokenizer",
        "mlload.validators.special_tokens",
        "mlload.validators.chat_template",
        "mlload.validators.side_files",
        "mlload.validators.remote_code",
    ),
    "LD": ("mlload.validators.loading",),
    "LO": ("mlload.validators.adapter",),
    "ME": ("mlload.validators.memory",),
    "NM": ("mlload.validators.names",),
    "TP03": ("mlload.validators.nodes",),
}


class Rule(NamedTuple):
    """code: letters and three digits; title: a few words; explanation: the function's docstring."""

    code: str
    title: str
    explanation: str
    check: Check


class Broken(NamedTuple):
    """A rule that raised: what could not be judged, and why."""

    code: str
    error: str


_registered: dict[str, Rule] = {}


def rule(code: str, title: str) -> Callable[[Check], Check]:
    """Register a rule under its code.

    Raises:
        ValueError: the code is taken, or the function has no docstring to explain it.
    """

    def register(check: Check) -> Check:
        if code in _registered:
            raise ValueError(f"rule {code} is registered twice: {_registered[code].check} and {check}")
        explanation = inspect.getdoc(check)
        if not explanation:
            raise ValueError(f"rule {code} has no docstring; it is what `mlload rules {code}` shows")
        _registered[code] = Rule(code, title, explanation, check)
        return check

    return register


def all_rules() -> tuple[Rule, ...]:
    """Every rule of every family, by code."""
    for modules in FAMILIES.values():
        for module in modules:
            import_module(module)
    return tuple(_registered[code] for code in sorted(_registered))


def run(context: Context, rules: Iterable[Rule] | None = None) -> tuple[list[Finding], list[Broken]]:
    """All findings of all rules; a rule that raises is reported as broken and the rest still run."""
    findings: list[Finding] = []
    broken: list[Broken] = []
    for entry in all_rules() if rules is None else rules:
        findings.extend(attempt(entry.code, partial(_found, entry, context), broken) or ())
    return findings, broken


def _found(entry: Rule, context: Context) -> list[Finding]:
    return list(entry.check(context))


def attempt(code: str, judge: Callable[[], Result], broken: list[Broken]) -> Result | None:
    """What a judge says; one that raises is noted in `broken`, and says nothing."""
    try:
        return judge()
    except Exception as error:
        if os.environ.get("MLLOAD_DEBUG"):
            raise
        broken.append(Broken(code, f"{type(error).__name__}: {error}"))
        return None
