"""vLLM's own verdicts as test data: the rows of the repository's configs, and of published ones where
the folder that MLLOAD_TRUTH names is there."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

OURS = Path(__file__).parent / "data" / "vllm"
PUBLIC = Path(os.environ["MLLOAD_TRUTH"]) if "MLLOAD_TRUTH" in os.environ else None

Row = dict[str, Any]


@cache
def _rows(file: Path) -> tuple[Row, ...]:
    return tuple(json.loads(line) for line in file.read_text().splitlines())


def own_rows() -> tuple[Row, ...]:
    return _rows(OURS / "truth.jsonl")


def public_rows() -> tuple[Row, ...]:
    """Rows of published configs; skips the test where MLLOAD_TRUTH is unset."""
    if PUBLIC is None:
        pytest.skip("MLLOAD_TRUTH is unset: published configs are not part of the repository")
    return tuple(row for row in _rows(PUBLIC / "truth.jsonl") if (PUBLIC / "public" / row["config"]).is_dir())


def folder(row: Row) -> Path:
    own = OURS / "configs" / row["config"]
    if own.is_dir():
        return own
    assert PUBLIC is not None
    return PUBLIC / "public" / row["config"]


def capability(row: Row) -> tuple[int, int]:
    major, minor = row["capability"].split(".")
    return int(major), int(minor)


TORCH = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
