"""What a model class fills in where a config is silent: config_defaults.json, made by tools/config_defaults.py."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, cast


@cache
def _table() -> dict[str, dict[str, Any]]:
    path = Path(__file__).with_name("config_defaults.json")
    return cast("dict[str, dict[str, Any]]", json.loads(path.read_text(encoding="utf-8")))


def defaults_of(model_type: str) -> dict[str, Any]:
    """Canonical field name -> default, {} for a type that the table does not know."""
    return _table().get(model_type, {})
