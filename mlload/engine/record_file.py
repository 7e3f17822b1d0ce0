"""The file that `load-test --record` writes and `--expect` reads, whichever engine answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlload.checkpoint.finding import MlloadError

SCHEMA = 1


def read_record(path: Path) -> dict[str, Any]:
    """A file that `--record` wrote. Raises MlloadError for any other."""
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise MlloadError(f"{path} cannot be read as a record: {error.strerror}") from error
    except ValueError as error:
        raise MlloadError(f"{path} cannot be read as a record: {error}") from error
    if not isinstance(found, dict) or found.get("schema_version") != SCHEMA or not found.get("prompts"):
        raise MlloadError(f"{path} is no record that mlload load-test --record wrote")
    return found
