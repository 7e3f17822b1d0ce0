"""`mlload rules [CODE]`: what the codes of findings mean. The same text makes docs/rules.md."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import NamedTuple

import click

from mlload.checkpoint.finding import MlloadError
from mlload.cli import options
from mlload.cli.layout import wrap
from mlload.cli.output import Line, Output, Span

# Modules with `CODES`: code -> (title, what it means and what to do).
PACKAGES = ("checkpoint", "plan", "quant", "profiles", "kernels.choice", "gate", "validators.deep")
TABLES = tuple(f"mlload.{package}.codes" for package in PACKAGES)

FAMILIES = {
    "AR": "Architecture",
    "CF": "Config",
    "DP": "Contents",
    "DR": "Draft models",
    "DT": "Dtype and GPU",
    "EN": "Engine",
    "FI": "Files",
    "GT": "Gate",
    "KN": "Kernels",
    "LD": "Loading",
    "LK": "Lock",
    "LO": "LoRA adapters",
    "ME": "Memory",
    "NM": "Names",
    "QT": "Quantization",
    "TN": "Tensors",
    "TP": "Parallel sizes",
}


class Rule(NamedTuple):
    code: str
    title: str
    text: str

    @property
    def family(self) -> str:
        letters = self.code.rstrip("0123456789")
        return FAMILIES.get(letters, letters)


def all_rules() -> tuple[Rule, ...]:
    """Every code that a finding can have, in order."""
    found: dict[str, Rule] = {}
    for table in TABLES:
        for code, (title, text) in import_module(table).CODES.items():
            found[code] = Rule(code, title, text)
    from mlload.validators.rules import all_rules as registered

    for rule in registered():
        found[rule.code] = Rule(rule.code, rule.title, " ".join(rule.explanation.split()))
    return tuple(found[code] for code in sorted(found))


@click.command()
@click.argument("code", required=False)
@options.text_or_json
@click.pass_obj
def command(out: Output, code: str | None, form: str) -> None:
    """What the code of a finding means; without CODE, all of them.

    The letters of a family alone, such as TP, list that family.
    """
    rules = all_rules()
    if code is not None:
        rules = called(code, rules) or _unknown(code, rules)
    if form == "json":
        out.json([rule._asdict() for rule in rules])
    elif len(rules) == 1:
        out.print_all(explained(rules[0], out.width))
    else:
        out.print_all(listed(rules, out.width))


def called(code: str, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The rule of that code; all of a family where only its letters are given."""
    wanted = code.upper()
    return tuple(rule for rule in rules if wanted in (rule.code, rule.code.rstrip("0123456789")))


def _unknown(code: str, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    from difflib import get_close_matches

    near = get_close_matches(code.upper(), [rule.code for rule in rules], n=3, cutoff=0.6)
    raise MlloadError(
        f"no rule has the code {code}" + (f"; near it are {', '.join(near)}" if near else ""), hint="mlload rules"
    )


def explained(rule: Rule, width: int) -> Iterator[Line]:
    yield [Span(rule.code, "bold"), f"  {rule.title}"]
    yield ""
    yield from wrap(rule.text, width)


def listed(rules: tuple[Rule, ...], width: int) -> Iterator[Line]:
    family = ""
    for rule in rules:
        if rule.family != family:
            if family:
                yield ""
            family = rule.family
            yield Span(family, "bold")
        first, *rest = wrap(rule.title, width, " " * 9, first=" " * 9)
        yield ["  ", Span(f"{rule.code}", "accent"), first[len(rule.code) + 2 :]]
        yield from rest
    yield ""
    yield "mlload rules CODE explains one."
