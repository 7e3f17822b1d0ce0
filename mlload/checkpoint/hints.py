"""Ways out that several file findings share. A command is given only where it can be typed as it stands."""

from __future__ import annotations

import os
import shlex

from mlload.checkpoint.finding import Hint
from mlload.checkpoint.sources.base import Source


def download_again(source: Source, name: str) -> Hint:
    """Fetch one file anew: with the Hub's own command where the source tells the repository."""
    repository = repository_of(source)
    if repository is None:
        return Hint(f"Copy or download {name} again and compare its size with the original's.")
    revision = f" --revision {source.revision}" if source.revision else ""
    target = "" if source.kind == "hub" else f" --local-dir {shlex.quote(source.label)}"
    if "snapshots" in source.label or "models--" in source.label:
        target = ""
    command = f"hf download {repository}{revision} {shlex.quote(name)}{target} --force-download"
    return Hint(f"Download {name} again.", command)


def pull_lfs(source: Source, names: list[str]) -> Hint:
    """git left pointers: fetch the contents."""
    if source.kind == "folder":
        return Hint("Fetch the contents that the pointers stand for.", f"git -C {shlex.quote(source.label)} lfs pull")
    return download_again(source, names[0])


def repair_index(source: Source) -> Hint:
    return Hint("Rewrite the index from the files' own headers.", repair(source))


def repair(source: Source) -> str:
    """The command that repairs a folder; of what is not on this disk, the one that shows what is to be done."""
    in_place = " --in-place" if source.kind == "folder" else ""
    return f"mlload repair {shlex.quote(source.label)}{in_place}"


def repository_of(source: Source) -> str | None:
    """ "org/name" for a Hub source or a folder inside the Hub's cache, else None."""
    if source.kind == "hub":
        return source.label.partition("@")[0].removeprefix("hf://")
    for part in os.path.abspath(source.label).split(os.sep):
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/", 1)
    return None
