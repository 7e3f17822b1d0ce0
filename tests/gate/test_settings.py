"""Where settings come from, and what they may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlload.checkpoint.finding import MlloadError
from mlload.gate.selection import Selection, read_codes
from mlload.gate.settings import check_names, find_settings, read_settings
from tests.gate.test_waivers import finding


def test_the_nearest_file_upwards_but_not_above_a_repository(tmp_path: Path) -> None:
    inner = tmp_path / "repository" / "deep" / "er"
    inner.mkdir(parents=True)
    (tmp_path / "mlload.toml").write_text("tp = 2\n")
    assert find_settings(str(inner)).options == {"tp": 2}
    (tmp_path / "repository" / ".git").mkdir()
    assert find_settings(str(inner)).options == {}
    (tmp_path / "repository" / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert find_settings(str(inner)).options == {}
    (tmp_path / "repository" / "pyproject.toml").write_text('[tool.mlload]\ngpu = "h100"\n')
    assert find_settings(str(inner)).options == {"gpu": "h100"}
    (tmp_path / "repository" / "mlload.toml").write_text("tp = 4\n")
    assert find_settings(str(inner)).options == {"tp": 4}


def test_overrides_by_source(tmp_path: Path) -> None:
    path = tmp_path / "mlload.toml"
    path.write_text(
        'tp = 8\n[[override]]\npath = "draft-*"\ntp = 1\n'
        '[[override]]\npath = "models/draft-x"\nkv-cache-dtype = "fp8"\n'
    )
    settings = read_settings(str(path))
    assert settings.for_source("models/big") == {}
    assert settings.for_source("models/draft-a/") == {"tp": 1}
    assert settings.for_source("models/draft-x") == {"tp": 1, "kv_cache_dtype": "fp8"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tp = ", "no TOML"),
        ("waive = 3", "waive is a list"),
        ("override = 3", "override is a list"),
        ("[[override]]\ntp = 1", "needs a path"),
        ("\x00", "no TOML"),
    ],
)
def test_what_cannot_be_meant(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mlload.toml"
    path.write_text(text)
    with pytest.raises(MlloadError, match=says):
        read_settings(str(path))


def test_unknown_names_are_told_with_what_was_meant() -> None:
    with pytest.raises(MlloadError, match="did you mean gpu"):
        check_names(["gpus"], ["gpu", "tp"], "mlload.toml")


@pytest.mark.parametrize(
    ("select", "ignore", "counts"),
    [
        ((), (), True),
        (("TN",), (), True),
        (("TP",), (), False),
        ((), ("TN0",), False),
        (("TN003",), ("TN",), True),  # the longer one decides
        (("TN",), ("TN003",), False),
    ],
)
def test_selection(select: tuple[str, ...], ignore: tuple[str, ...], counts: bool) -> None:
    assert Selection(select, ignore).counts(finding("TN003")) is counts


def test_codes_that_no_rule_begins_with() -> None:
    assert read_codes(["tn003, TP"], "--ignore", ["TN003", "TP001"]) == ("TN003", "TP")
    with pytest.raises(MlloadError, match="near it are TN003"):
        read_codes(["TN004"], "--ignore", ["TN003", "TP001"])
