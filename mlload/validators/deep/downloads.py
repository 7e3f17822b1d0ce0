"""Digests that `hf download --local-dir` keeps beside the files it wrote.

FOLDER/.cache/huggingface/download/NAME.metadata has three lines: commit, ETag, and when it was written. The ETag of
a file in the Hub's large-file store is its sha256 (huggingface_hub/_local_folder.py). A file that was written after
that is somebody's own, and is left out, as huggingface_hub itself does.
"""

from __future__ import annotations

import os

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.sources.local import LocalSource, is_hex, open_regular

FOLDER = ".cache/huggingface/download"


def downloaded(checkpoint: Checkpoint) -> dict[str, str]:
    """name -> sha256 of what was downloaded."""
    source = checkpoint.source
    if not isinstance(source, LocalSource) or not os.path.isdir(source.path(FOLDER)):
        return {}
    found = {}
    for file in checkpoint.files:
        digest = _digest(source, file.name)
        if digest is not None:
            found[file.name] = digest
    return found


def _digest(source: LocalSource, name: str) -> str | None:
    try:
        with open(source.path(f"{FOLDER}/{name}.metadata"), encoding="ascii", opener=open_regular) as handle:
            lines = handle.read(1024).split("\n")
        written = float(lines[2])
        changed = os.stat(source.path(name)).st_mtime
    except (OSError, ValueError, IndexError):
        return None
    digest = lines[1].strip()
    return digest if len(digest) == 64 and is_hex(digest) and changed <= written + 1 else None
