"""Findings about whole files: digests against what they should be, and files that did not hold still."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from shlex import quote
from typing import NamedTuple

from mlload.checkpoint import hints
from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import Finding, Hint
from mlload.checkpoint.sources.local import SKIPPED_FOLDERS
from mlload.plan.unknowns import Unknown
from mlload.validators.deep.downloads import downloaded
from mlload.validators.deep.scan import Scan


class Expected(NamedTuple):
    """digest: sha256 in hex; by: who says so, for the message"""

    digest: str
    by: str


def expected_digests(checkpoint: Checkpoint, manifest: Mapping[str, str] | None, label: str) -> dict[str, Expected]:
    """What the digests of files should be: a manifest's word, else the Hub's. label: how to call the manifest."""
    found = {name: Expected(digest, "the Hub") for name, digest in downloaded(checkpoint).items()}
    found |= {
        file.name: Expected(file.digest.lower(), "the Hub")
        for file in checkpoint.files
        if file.digest is not None and len(file.digest) == 64
    }
    if manifest is not None:
        there = {file.name for file in checkpoint.files}
        found |= {name: Expected(digest, label) for name, digest in manifest.items() if name in there}
    return found


def file_findings(
    scan: Scan, checkpoint: Checkpoint, expected: Mapping[str, Expected], manifest: Mapping[str, str] | None, label: str
) -> Iterator[Finding]:
    for file in scan.files:
        if file.changed:
            message = f"{file.name} was changed while it was read: what was seen of it is no state that it had"
            yield Finding(
                "DP013", "error", "content", file.name, message, {}, (Hint("validate again when it is whole"),)
            )
        wanted = expected.get(file.name)
        if wanted is not None and file.sha256 is not None and file.sha256 != wanted.digest and not file.changed:
            message = f"sha256 is {file.sha256}, and {wanted.by} says {wanted.digest}"
            numbers = {"sha256": file.sha256, "expected": wanted.digest, "bytes": file.nbytes}
            again = (hints.download_again(checkpoint.source, file.name),)
            yield Finding("DP010", "error", "content", file.name, message, numbers, again)
    if manifest is not None:
        yield from manifest_findings(checkpoint, manifest, label)


def manifest_findings(checkpoint: Checkpoint, manifest: Mapping[str, str], label: str) -> Iterator[Finding]:
    there = {file.name for file in checkpoint.files}
    missing = sorted(name for name in manifest if name not in there and name.split("/")[0] not in SKIPPED_FOLDERS)
    for name in missing:
        yield Finding("DP011", "error", "content", name, f"{label} lists {name}, which is not here")
    used = {ref.file for ref in checkpoint.tensors.values()}
    uncovered = [checkpoint.files[number].name for number in sorted(used)]
    uncovered = [name for name in uncovered if name not in manifest]
    if uncovered:
        message = f"{label} says nothing of {len(uncovered)} of {len(used)} files with weights, first {uncovered[0]}"
        yield Finding(
            "DP012", "warning", "content", uncovered[0], message, {"files": len(uncovered), "of": len(used)},
            (Hint("write it anew", f"mlload validate {quote(checkpoint.label)} --write-manifest {quote(label)}"),),
        )  # fmt: skip


def unread(scan: Scan) -> Iterator[Unknown]:
    """Files of which not everything was read: their contents stay unknown."""
    for file in scan.files:
        if file.problem is not None:
            yield Unknown(f"the contents of {file.name}", file.problem, "make the whole file readable")
    if scan.hidden:
        why = f"{len(scan.hidden)} tensors share bytes with others, first {scan.hidden[0]}"
        yield Unknown("tensors that overlap", why, "save them apart")
