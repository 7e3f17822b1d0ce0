"""The headers of all weight files of a checkpoint, read in as few round trips as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

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
T = TypeVar("T")

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
    for batch in _batches(safetensors, lambda file: guesses.get(file.name, FIRST_READ)):
        pieces = source.read_many([Range(f.name, 0, min(f.size, guesses.get(f.name, FIRST_READ))) for f in batch])
        starts = map(_start, batch, pieces)
        for whole in _batches(starts, lambda start: start.missing):
            _safetensors(source, whole, numbers, result, digest)
    for file in files:
        kind = kind_of_file(file.name)
        if kind == "safetensors":
            continue
        from mlload.checkpoint.other_headers import read_one

        try:
            digest.update(read_one(source, kind, file, numbers[file.name], result))
        except MlloadError as error:
            _unread(source, file, error, result)
    result.fingerprint = digest.hexdigest()
    return result


class Start(NamedTuple):
    """The first bytes of a file, and how many more its header takes."""

    file: SourceFile
    data: bytes | Exception
    missing: int


def _batches(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Items in groups of at most BATCH_BYTES, an item above that alone."""
    batch: list[T] = []
    held = 0
    for item in items:
        if batch and held + size(item) > BATCH_BYTES:
            yield batch
            batch, held = [], 0
        batch.append(item)
        held += size(item)
    if batch:
        yield batch


def _start(file: SourceFile, data: bytes | Exception) -> Start:
    if isinstance(data, bytes) and len(data) > 8 and data[8:9] in STARTS:
        length = header_length(data)
        if len(data) - 8 < length <= min(MAX_HEADER, file.size - 8):
            return Start(file, data, length + 8 - len(data))
    return Start(file, data, 0)


def _safetensors(source: Source, starts: list[Start], numbers: dict[str, int], result: Headers, digest: Any) -> None:
    """Parse the headers of a batch, after reading what is missing of them."""
    incomplete = [start for start in starts if start.missing]
    ranges = [
        Range(start.file.name, len(start.data), start.missing) for start in incomplete if isinstance(start.data, bytes)
    ]
    rest = dict(zip((piece.name for piece in ranges), source.read_many(ranges), strict=True)) if ranges else {}
    for file, data, _ in starts:
        added = rest.get(file.name, b"")
        if isinstance(data, Exception):
            _unread(source, file, data, result)
            continue
        if isinstance(added, Exception):
            _unread(source, file, added, result)
            continue
        end = 8 + header_length(data)
        raw = data[8:] + added if added else data[8:end]
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
        _damaged(source, file, data, raw, number, result)


def _unread(source: Source, file: SourceFile, error: Exception, result: Headers) -> None:
    again = (hints.download_again(source, file.name),)
    result.findings.append(Finding("FI022", "error", "starts", file.name, f"{error}.", {}, again))
    result.unread.add(file.name)


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
