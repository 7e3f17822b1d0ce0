"""vLLM's own YAML (`--config FILE`): flags as keys, with dashes or underscores. Turned into words as vLLM does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlload.checkpoint.finding import MlloadError
from mlload.profiles.serve_flags import FlagTable


def words_of_config(path: str, table: FlagTable) -> list[str]:
    """The flags of a YAML file as words of a command line.

    Raises MlloadError where the file cannot be read, or holds no mapping.
    """
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore]
    except ModuleNotFoundError:
        raise MlloadError(
            f"reading {path} needs a YAML reader, which is not installed", hint="pip install pyyaml"
        ) from None
    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise MlloadError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise MlloadError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise MlloadError(f"{path} holds no mapping of flags to values")
    return [word for key, value in document.items() for word in _words(str(key), value, table)]


def _words(key: str, value: Any, table: FlagTable) -> Iterator[str]:
    flag = f"--{key}"
    if isinstance(value, bool):
        if value:
            yield flag
        elif table.find(f"--no-{key}") is not None:
            yield f"--no-{key}"
    elif isinstance(value, list):
        if value:
            yield flag
            yield from map(str, value)
    elif isinstance(value, dict):
        yield flag
        yield json.dumps(value)
    else:
        yield flag
        yield str(value)
