"""Codes are explained once, and the page says what the command says."""

from __future__ import annotations

import json
import re
from pathlib import Path

from mlload.cli.rules import all_rules
from tests.cli.conftest import Run

ROOT = Path(__file__).resolve().parents[2]
CODE = re.compile(r"""["']([A-Z]{2}[0-9]{3})["']""")


def test_every_code_in_the_source_is_explained() -> None:
    known = {rule.code for rule in all_rules()}
    used = {
        code
        for package in ("checkpoint", "plan", "quant", "validators")
        for path in (ROOT / "mlload" / package).rglob("*.py")
        for code in CODE.findall(path.read_text(encoding="utf-8"))
    }
    assert used <= known


def test_rules(mlload: Run) -> None:
    listed = mlload("rules").stdout
    rules = json.loads(mlload("rules", "--format", "json").stdout)
    assert len(rules) > 20 and all(rule["code"] in listed for rule in rules)
    first = rules[0]
    explained = mlload("rules", first["code"].lower())
    assert explained.returncode == 0
    assert explained.stdout.split() == [first["code"], *first["title"].split(), *first["text"].split()]


def test_the_letters_of_a_family_list_it(mlload: Run) -> None:
    listed = {line.split()[0] for line in mlload("rules", "me").stdout.splitlines() if line.startswith(" ")}
    rules = json.loads(mlload("rules", "--format", "json").stdout)
    assert listed == {rule["code"] for rule in rules if rule["code"].startswith("ME")}
    assert mlload("rules", "M").returncode == 2


def test_a_code_that_is_not_there(mlload: Run) -> None:
    done = mlload("rules", "TP0O1")
    assert done.returncode == 2 and "no rule has the code TP0O1" in done.stderr and "near it are TP0" in done.stderr
