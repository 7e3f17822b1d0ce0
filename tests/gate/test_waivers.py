"""Waivers: what they fit, and that they end."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import pytest

from mlload.checkpoint.finding import Finding, MlloadError
from mlload.gate.waivers import Waiver, read_waivers, waive

TODAY = date(2027, 3, 15)


def finding(code: str = "TN003", where: str = "model.layers.0-31.mlp.down_proj") -> Finding:
    return Finding(code, "error", "right", where, "something")


def waiver(**changes: Any) -> Waiver:
    return Waiver(**{"code": "TN003", "path": "*", "reason": "looked at", "until": None, **changes})


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, True),
        ({"code": "TN"}, True),
        ({"code": "TN1"}, False),
        ({"path": "model.layers.*.mlp.*"}, True),
        ({"path": "*.self_attn.*"}, False),
        ({"source": "models/*"}, True),
        ({"source": "other/*"}, False),
        ({"until": date(2027, 3, 15)}, True),  # the last day counts
        ({"until": date(2027, 3, 14)}, False),
    ],
)
def test_what_a_waiver_fits(changes: dict[str, Any], fits: bool) -> None:
    kept, waived = waive([finding()], "models/a", [waiver(**changes)], TODAY)
    assert [w.finding for w in waived] == ([finding()] if fits else [])
    assert (finding() in kept) is not fits


def test_an_expired_waiver_says_so_and_its_findings_count_again() -> None:
    kept, waived = waive([finding(), finding(where="x")], "m", [waiver(until=date(2027, 1, 31))], TODAY)
    assert waived == []
    assert [f.code for f in kept] == ["TN003", "TN003", "GT001"]
    assert (kept[-1].severity, kept[-1].numbers["findings"]) == ("warning", 2)
    assert "2027-01-31" in kept[-1].message and "looked at" in kept[-1].hints[0].what


def test_an_expired_waiver_that_fits_nothing_is_silent() -> None:
    assert waive([], "m", [waiver(until=date(2020, 1, 1))], TODAY) == ([], [])


def test_a_later_waiver_takes_the_place_of_an_expired_one() -> None:
    kept, waived = waive([finding()], "m", [waiver(until=date(2020, 1, 1)), waiver(reason="again")], TODAY)
    assert kept == [] and waived[0].waiver.reason == "again"


def test_days_as_toml_and_as_text() -> None:
    rows = [
        {"code": "tn003", "reason": "r", "until": date(2027, 1, 2)},
        {"code": "TN003", "reason": "r", "until": "2027-01-02"},
        {"code": "TN003", "reason": "r", "until": datetime(2027, 1, 2, 12)},
    ]
    assert set(read_waivers(rows, "mlload.toml")) == {waiver(reason="r", until=date(2027, 1, 2))}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"code": "TN003"}, "needs a code and a reason"),
        ({"reason": "r"}, "needs a code and a reason"),
        ({"code": "TN003", "reason": "r", "until": "soon"}, "a day such as"),
        ({"code": "TN003", "reason": "r", "until": 3}, "a day such as"),
        ({"code": "TN003", "reason": "r", "where": "x"}, "unknown key where"),
        ({"code": 3, "reason": "r"}, "code is a string"),
    ],
)
def test_a_waiver_that_says_too_little(row: dict[str, Any], says: str) -> None:
    with pytest.raises(MlloadError, match=says) as caught:
        read_waivers([row], "mlload.toml")
    assert "mlload.toml, waiver 1" in caught.value.message
