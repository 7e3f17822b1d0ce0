"""Full-size skeletons for tests: each written once a session, on demand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tools.skeleton import write_listed

Skeleton = Callable[[str], Path]


@pytest.fixture(scope="session")
def skeleton(tmp_path_factory: pytest.TempPathFactory) -> Skeleton:
    """`skeleton("deepseek-v3")` is the folder of one of tools/skeletons.json; leave it as it is."""
    root = tmp_path_factory.mktemp("skeletons") / "acme"

    def folder(name: str) -> Path:
        path = root / name
        if not path.exists():
            write_listed(name, path)
        return path

    return folder
