"""The headers of all weight files of a checkpoint, read in as few round trips as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from mlload.checkpoint import hints
from mlload.checkpoint.checkpoint import Index
from mlload.checkpoint.finding import Finding, MlloadError
from mlload.checkpoint.safetensors import (
    FIRST_READ,
    MAX_HEADER,
    NotSound,
    guess_header_lengths,
    header_length,
    parse_fast,
)
from mlload.checkpoint.sources.base import Range, Source, SourceFile
from mlload.checkpoint.tensor import TensorRef
from mlload.checkpoint.weight_files import kind_of_file

STARTS = (b"{", b" ", b"\n", b"\t", b"\r")  # white space is legal JSON, if odd
BATCH_BYTES = 32 * 1024 * 1024  # headers held at once before they are parsed


@dataclass
class Headers:
    """by_file: name -> tensors of every file whose header could be read;
    unread: files that are there and whose header could not;
    metadata: name -> the file's own metadata."""

    by_file: dict[str, list[TensorRef]] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)
    metadata: dict[str, dict[str, Any]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    fingerprint: str = ""

    def add(self, other: Headers) -> None:
        """Take in the tensors of other files; findings and fingerprint stay apart."""
        self.by_file.update(other.by_file)
        self.unread |= other.unread
        self.metadata.update(other.metadata)


def read_headers(
    source: Source,
    names: Sequence[str],
    listing: Sequence[SourceFile],
    numbers: dict[str, int],
    index: Index | None,
) -> Headers:
    """Headers of the files `names`, each by the reader of its kind.

    numbers: file name -> its index in `Checkpoint.files`
    """
    result = Headers()
    digest = blake2b(digest_size=16)
    files: list[SourceFile] = []
    for name in names:
        file = listing[numbers[name]]
        digest.update(f"{name}\0{file.size}\0".encode("utf-8", "surrogatepass"))
        if file.problem is not None:
            code = "FI023" if file.problem.startswith("dangling") else "FI022"
            message = f"{name}: {file.problem}."
            again = (hints.download_again(source, name),)
            result.findings.append(Finding(code, "error", "starts", name, message, {}, again))
            result.unread.add(name)
        else:
            files.append(file)
    guesses = guess_header_lengths(index.weight_map) if index and source.remote else {}
    safetensors = [file for file in files if kind_of_file(file.name) == "safetensors"]
    for batch in _batches(safetensors, guesses):
        _safetensors(source, batch, guesses, numbers, result, digest)
    for file in files:
        kind = kind_of_file(file.name)
        if kind == "safetensors":
            continue
        from mlload.checkpoint.other_headers import read_one

        try:
            digest.update(read_one(source, kind, file, numbers[file.name], result))
        except MlloadError as error:
            again = (hints.download_again(source, file.name),)
            result.findings.append(Finding("FI022", "error", "starts", file.name, f"{error}.", {}, again))
            result.unread.add(file.name)
    result.fingerprint = digest.hexdigest()
    return result


def _batches(files: list[SourceFile], guesses: dict[str, int]) -> list[list[SourceFile]]:
    batches: list[list[SourceFile]] = []
    held = BATCH_BYTES
    for file in files:
        size = guesses.get(file.name, FIRST_READ)
        if held + size > BATCH_BYTES:
            batches.append([])
            held = 0
        batches[-1].append(file)
        held += size
    return batches


def _safetensors(
    source: Source,
    files: list[SourceFile],
    guesses: dict[str, int],
    numbers: dict[str, int],
    result: Headers,
    digest: Any,
) -> None:
    starts = source.read_many(
        [Range(file.name, 0, min(file.size, guesses.get(file.name, FIRST_READ))) for file in files]
    )
    rest: list[Range] = []
    for file, start in zip(files, starts, strict=True):
        if isinstance(start, bytes) and len(start) >= 8:
            end = 8 + header_length(start)
            if len(start) < end <= file.size and end - 8 <= MAX_HEADER and start[8:9] in STARTS:
                rest.append(Range(file.name, len(start), end - len(start)))
    more: dict[str, bytes | Exception] = {}
    if rest:
        more = dict(zip((piece.name for piece in rest), source.read_many(rest), strict=True))
    for file, start in zip(files, starts, strict=True):
        added = more.get(file.name, b"")
        failed = start if isinstance(start, Exception) else added if isinstance(added, Exception) else None
        if failed is not None or isinstance(start, Exception) or isinstance(added, Exception):
            again = (hints.download_again(source, file.name),)
            result.findings.append(Finding("FI022", "error", "starts", file.name, f"{failed}.", {}, again))
            result.unread.add(file.name)
            continue
        end = 8 + header_length(start)
        raw = start[8:end] if not added else start[8:] + added
        digest.update(raw)
        number = numbers[file.name]
        if file.size >= 10 and end <= file.size and end - 8 <= MAX_HEADER:
            try:
                tensors, metadata = parse_fast(raw, number, end, file.size)
            except NotSound:
                pass
            else:
                result.by_file[file.name] = tensors
                if metadata is not None:
                    result.metadata[file.name] = metadata
                continue
        _damaged(source, file, start, raw, number, result)


def _damaged(source: Source, file: SourceFile, start: bytes, raw: bytes, number: int, result: Headers) -> None:
    from mlload.checkpoint import safetensors_damage

    found = safetensors_damage.explain_start(source, file.name, file.size, start[:512])
    result.findings += found
    if found:
        result.unread.add(file.name)
        return
    data_start = 8 + header_length(start)
    header, found = safetensors_damage.explain_header(source, file.name, raw, number, data_start, file.size)
    result.findings += found
    if header is None:
        result.unread.add(file.name)
        return
    result.by_file[file.name] = header.tensors
    if header.metadata is not None:
        result.metadata[file.name] = header.metadata
