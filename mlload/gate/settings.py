"""Settings of a project: `mlload.toml`, or `[tool.mlload]` in pyproject.toml, in this folder or one above it.

tp = 8                        # any option of validate by its long name
gpu = "h100"
ignore = ["TN030"]

[[override]]                  # other options for some sources
path = "models/draft-*"       # glob over the source as typed, or over its end
tp = 1

[[waive]]
code = "CF012"
path = "config.json"
reason = "generation length is set by the gateway"
until = 2027-06-30
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlload.checkpoint.finding import MlloadError
from mlload.gate.waivers import Waiver, read_waivers

NAME = "mlload.toml"
# Settings never come from above a repository.
ROOTS = (".git", ".hg")


@dataclass(frozen=True, slots=True)
class Settings:
    """path: the file; options: name with underscores -> value; overrides: (glob, options)"""

    path: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    overrides: tuple[tuple[str, dict[str, Any]], ...] = ()
    waivers: tuple[Waiver, ...] = ()

    def for_source(self, source: str) -> dict[str, Any]:
        """Options of the overrides that fit a source; a later one wins."""
        from fnmatch import fnmatchcase

        found: dict[str, Any] = {}
        name = source.rstrip("/")
        for glob, options in self.overrides:
            if fnmatchcase(name, glob) or fnmatchcase(name, "*/" + glob):
                found.update(options)
        return found


def find_settings(start: str | None = None) -> Settings:
    """The nearest settings file from a folder upwards; empty settings where there is none."""
    folder = os.path.abspath(start or os.getcwd())
    while True:
        own, project = os.path.join(folder, NAME), os.path.join(folder, "pyproject.toml")
        if os.path.isfile(own):
            return read_settings(own)
        if os.path.isfile(project) and _names_us(project):
            return read_settings(project)
        above = os.path.dirname(folder)
        if above == folder or any(os.path.exists(os.path.join(folder, root)) for root in ROOTS):
            return Settings()
        folder = above


def _names_us(path: str) -> bool:
    """Whether a pyproject.toml has a section of ours: a look that spares most projects the TOML reader."""
    try:
        return b"tool.mlload" in Path(path).read_bytes()
    except OSError:
        return False


def read_settings(path: str) -> Settings:
    """One file. Raises MlloadError where it is no TOML, or holds what cannot be meant."""
    import tomllib

    name = os.path.relpath(path)
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise MlloadError(f"cannot read {name}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MlloadError(f"{name} is no TOML: {error}") from None
    if os.path.basename(path) == "pyproject.toml":
        tool = document.get("tool", {})
        document = tool.get("mlload", {}) if isinstance(tool, dict) else {}
        if not isinstance(document, dict):
            raise MlloadError(f"{name}: tool.mlload is a table")
    options = {key.replace("-", "_"): value for key, value in document.items() if key not in ("waive", "override")}
    return Settings(
        name,
        options,
        tuple(_override(row, name) for row in _rows(document.get("override", []), name)),
        read_waivers(document.get("waive", []), name),
    )


def _rows(value: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise MlloadError(f"{name}: override is a list of tables, each written [[override]]")
    return value


def _override(row: dict[str, Any], name: str) -> tuple[str, dict[str, Any]]:
    path = row.get("path")
    if not isinstance(path, str) or not path:
        raise MlloadError(f"{name}: an override needs a path, a glob over sources")
    return path, {key.replace("-", "_"): value for key, value in row.items() if key != "path"}


def check_names(options: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raises MlloadError for an option that does not exist."""
    names = tuple(known)
    for name in options:
        if name not in names:
            from difflib import get_close_matches

            near = get_close_matches(name, names, n=1)
            raise MlloadError(f"{where}: unknown setting {name}" + (f"; did you mean {near[0]}?" if near else ""))
