"""The Hub's download cache on this machine: which snapshot of a model is there, and is it whole.

Layout: `$HF_HUB_CACHE/models--org--name/{refs/<branch>, snapshots/<commit>/<files>, blobs/<digest>}`.
It is read directly because that takes no import and no network. Where the cache lies follows the
environment variables of huggingface_hub.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

WEIGHT_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".pth")


def home() -> Path:
    """The folder of huggingface's own files ("~/.cache/huggingface" unless the environment says otherwise)."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    return _expand(os.environ.get("HF_HOME") or os.path.join(base, "huggingface"))


def folder() -> Path:
    """The cache of downloaded repositories."""
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return _expand(named) if named else home() / "hub"


def _expand(text: str) -> Path:
    return Path(os.path.expandvars(os.path.expanduser(text)))


def snapshot(repo_id: str, revision: str) -> Path | None:
    """The folder of a cached revision (a branch, tag or full commit hash), or None."""
    root = folder() / f"models--{repo_id.replace('/', '--')}"
    commit = revision
    try:
        commit = (root / "refs" / revision).read_text().strip()
    except (OSError, ValueError):  # not a name that the cache knows: perhaps the commit itself
        if "/" in revision or not revision:
            return None
    if "/" in commit or commit in ("", ".", ".."):
        return None
    path = root / "snapshots" / commit
    return path if path.is_dir() else None


def is_whole(path: Path) -> bool:
    """Whether the snapshot has weights, and all those that its index and its files' numbering name.

    A library that only wanted the tokenizer leaves a snapshot without weights: that one must not
    stand in for the model.
    """
    names = [entry.name for entry in path.iterdir() if entry.name.endswith(WEIGHT_SUFFIXES) and entry.exists()]
    if not names:
        return False
    present = set(names)
    indexes = [entry for entry in path.iterdir() if entry.name.endswith(".index.json")]
    wanted = [files for files in (_indexed_files(entry) for entry in indexes) if files]
    if wanted:
        return any(files <= present for files in wanted)
    return not any(missing for missing in map(_numbered_twins, names) if not missing <= present)


def _indexed_files(path: Path) -> set[str]:
    try:
        weight_map = json.loads(path.read_bytes())["weight_map"]
        return {str(name) for name in weight_map.values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()


def _numbered_twins(name: str) -> set[str]:
    """All parts of a file called "...-00002-of-00005.safetensors"; empty for an unnumbered one."""
    stem, dot, suffix = name.rpartition(".")
    head, _, total = stem.rpartition("-of-")
    first, dash, number = head.rpartition("-")
    if not (number.isdigit() and total.isdigit() and len(total) <= 6):
        return set()
    width = len(number)
    return {f"{first}{dash}{i:0{width}d}-of-{total}{dot}{suffix}" for i in range(1, int(total) + 1)}
