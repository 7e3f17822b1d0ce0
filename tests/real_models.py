"""Real models for tests: those that `python -m tools.real_model NAME` has made on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tools.real_model import FOLDERS, cache

RealModel = Callable[[str], Path]


@pytest.fixture(scope="session")
def real_model() -> RealModel:
    """`real_model("smollm2")` is its folder; skips where it has not been made, as that takes a network."""

    def folder(name: str) -> Path:
        path = cache() / FOLDERS[name]
        if not path.is_dir():
            pytest.skip(f"not made on this machine: python -m tools.real_model {name}")
        return path

    return folder
