"""Ctrl-C before anything is finished leaves nothing behind; what holds work stays for --resume."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mlload.cli.app import main
from mlload.quantize.stream import Sheets
from mlload.writer.folder import OutputFolder
from tests.quantize.tiny import config, write


def refused(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    write(tmp_path / "model", config("llama"))
    return ["quantize", str(tmp_path / "model"), "-o", str(tmp_path / "out"), "--method", "rtn", "--group-size", "32"]


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (OutputFolder, "_take_lock"),  # the folder is made
        (OutputFolder, "record"),
        (os, "replace"),  # half a record
        (OutputFolder, "_check_space"),  # the record says that nothing is done
        (OutputFolder, "create"),
        (Sheets, "sync"),  # a model this small is one piece of work, and not recorded yet
    ],
)
def test_nothing_is_left(
    owner: Any,
    name: str,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if name == "sync":
        monkeypatch.setattr(OutputFolder, "record", lambda self, done: None)
    monkeypatch.setattr(owner, name, refused)
    assert main(words) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert "--resume" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["_take_lock", "record", "_check_space"])
def test_what_was_there_before_stays(
    name: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty folder of that name too: it is not this run's."""
    (tmp_path / "out.partial").mkdir()
    monkeypatch.setattr(OutputFolder, name, refused)
    assert main(words) == 130
    assert (tmp_path / "out.partial").is_dir()


def test_what_holds_work_stays(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(OutputFolder, "finish", refused)
    assert main(words) == 130
    assert "the same command with --resume" in capsys.readouterr().err
    assert (tmp_path / "out.partial" / "mlload-progress.json").exists()
    monkeypatch.undo()
    assert main([*words, "--resume"]) == 0
    assert not (tmp_path / "out.partial").exists()
