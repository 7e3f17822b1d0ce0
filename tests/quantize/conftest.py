"""A small complete checkpoint, and the command run in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlload.cli.app import main
from mlload.demo.checkpoint import write_demo


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quantize") / "demo"
    write_demo(folder)
    return folder


Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """The exit code, and the JSON that was printed, or {"error": what was said}."""

    def call(*words: Any) -> tuple[int, dict[str, Any]]:
        code = main(["quantize", *map(str, words), "--format", "json"])
        printed = capsys.readouterr()
        return code, json.loads(printed.out) if printed.out else {"error": printed.err}

    return call
