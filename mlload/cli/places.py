"""Which file a finding is about, and how other programs call that file."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import Finding

# A folded range in a name: "0-79" or "0-3,7".
RANGE = re.compile(r"(?<=\.)\d+(?:-\d+)?(?:,\s?\d+(?:-\d+)?)*(?=\.|$)")
TEXT = (".json", ".jinja", ".txt", ".md", ".py", ".yaml", ".yml", ".toml")


class Place(NamedTuple):
    """file: name inside the source; path: on this machine, relative to the current folder where it lies in it,
    None for a remote source; uri: for a link; text: it has lines"""

    file: str
    path: str | None
    uri: str
    text: bool


def place_of(finding: Finding, checkpoint: Checkpoint | None, source: str) -> Place:
    """The file that a finding names, or that holds the tensor it names, else the config, else the source."""
    if checkpoint is None:
        path = source if os.path.exists(source) else None
        return Place(source, path, uri_of(source) if path else source, False)
    name = _file(finding.where, checkpoint)
    return _located(name, checkpoint, source)


def _file(where: str, checkpoint: Checkpoint) -> str:
    names = {file.name for file in checkpoint.files}
    first = where.split(" ")[0].rstrip(":,")
    if where in names or first in names:
        return where if where in names else first
    holder = _holder(first, checkpoint)
    if holder is not None:
        return holder
    if "config.json" in names:
        return "config.json"
    return next((file.name for file in checkpoint.files if file.used), "")


def _holder(where: str, checkpoint: Checkpoint) -> str | None:
    """The file of the first tensor below a layer; ranges stand for their numbers."""
    if "." not in where:
        return None
    pattern = re.compile(r"\d+".join(re.escape(part) for part in RANGE.split(where)) + r"(?:\.|$)")
    found = next((ref for name, ref in checkpoint.tensors.items() if pattern.match(name)), None)
    return None if found is None else checkpoint.files[found.file].name


def _located(name: str, checkpoint: Checkpoint, source: str) -> Place:
    from mlload.checkpoint.sources.local import LocalSource

    text = name.endswith(TEXT)
    if isinstance(checkpoint.source, LocalSource):
        path = os.path.abspath(checkpoint.source.path(name) if name else source)
        inside = os.path.relpath(path)
        shown = path if inside.startswith("..") else inside
        return Place(name, shown, uri_of(shown), text)
    if checkpoint.source.kind == "hub":
        repository = source.partition("@")[0]
        revision = checkpoint.revision or "main"
        return Place(name, None, f"https://huggingface.co/{repository}/blob/{revision}/{_quoted(name)}", text)
    return Place(name, None, f"{_quoted(source.rstrip('/'))}/{_quoted(name)}", text)


def uri_of(path: str) -> str:
    """A local path as SARIF wants it: relative with "/", or file://."""
    path = path.replace(os.sep, "/")
    return "file://" + _quoted(path) if path.startswith("/") else _quoted(path)


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="/:@-._~+=")
