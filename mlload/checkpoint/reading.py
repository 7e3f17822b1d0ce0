"""How a source becomes a `Checkpoint`: which files, their headers, and what they say of each other.

Three rounds of reads, each of them concurrent where the source is remote: the small files and the
index; the start of every weight file, as long as the index lets us guess; what the guess missed.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace

from mlload.checkpoint import index as indexes
from mlload.checkpoint import side_files
from mlload.checkpoint.checkpoint import Checkpoint, FileRef, Index
from mlload.checkpoint.finding import Finding
from mlload.checkpoint.headers import read_headers
from mlload.checkpoint.json_text import escape
from mlload.checkpoint.sources.base import Range, Source, SourceFile
from mlload.checkpoint.sources.progress import Progress
from mlload.checkpoint.stray import worth_reading
from mlload.checkpoint.union import unite
from mlload.checkpoint.weight_files import Choice, choose, kind_of_file

MAX_INDEX = 256 * 1024 * 1024  # a million tensors take about a third


def open_checkpoint(source: str | Source, revision: str | None, progress: Progress | None) -> Checkpoint:
    """See `Checkpoint.open`."""
    opened = _resolve(source, revision, progress) if isinstance(source, str) else source
    # Half a million small objects that all live on: the cycle collector would walk them many times over.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _read(opened)
    finally:
        if collecting:
            gc.enable()


def _resolve(text: str, revision: str | None, progress: Progress | None) -> Source:
    from mlload.checkpoint.sources import open_source

    return open_source(text, revision=revision, progress=progress)


def _read(source: Source) -> Checkpoint:
    listing = source.files()
    choice = choose(listing, getattr(source, "name", None) if source.kind == "file" else None)
    problems: list[Finding] = []
    sizes = {file.name: file for file in listing}

    small = side_files.names(listing)
    wanted = small + [name for name in (choice.index_name,) if name and sizes[name].size <= MAX_INDEX]
    pieces = source.read_many([Range(name) for name in wanted])
    texts = dict(zip(wanted, pieces, strict=True))
    json_files, found = side_files.parse(source, {name: texts[name] for name in small}, sizes)
    problems += found

    index, found = _index(source, choice, texts, listing)
    problems += found
    used, stray = _divide(choice, index, listing)
    numbers = {file.name: position for position, file in enumerate(listing)}
    headers = read_headers(source, used, listing, numbers, index)
    problems += headers.findings
    beside = read_headers(source, worth_reading(choice, stray), listing, numbers, None)
    # No engine reads these: what is wrong with them stops nothing.
    problems += [replace(finding, severity="warning") for finding in beside.findings]
    headers.add(beside)
    union = unite(source, choice, index, used, stray, listing, headers)
    problems += union.findings
    config = json_files.get("config.json")
    config = config if isinstance(config, dict) else {}
    problems += side_files.judge(source, choice.format, json_files, sizes, listing, used, headers)
    taken = set(used)
    return Checkpoint(
        label=source.label,
        source=source,
        format=choice.format,
        tensors=union.tensors,
        stray=union.stray,
        config=config,
        json_files=json_files,
        metadata=headers.metadata,
        index=index,
        files=tuple(
            FileRef(file.name, file.size, kind_of_file(file.name), file.name in taken, file.digest) for file in listing
        ),
        fingerprint=headers.fingerprint,
        problems=tuple(map(_printable, problems)),
    )


def _printable(finding: Finding) -> Finding:
    """A finding on one line whatever the names in it hold: control characters are escaped."""
    if finding.message.isprintable() and finding.where.isprintable():
        return finding
    return replace(finding, message=escape(finding.message), where=escape(finding.where))


def _index(
    source: Source, choice: Choice, texts: dict[str, bytes | Exception], listing: Sequence[SourceFile]
) -> tuple[Index | None, list[Finding]]:
    if choice.index_name is None:
        return None, []
    size = next((file.size for file in listing if file.name == choice.index_name), 0)
    if size > MAX_INDEX:
        message = f"{choice.index_name} has {size:,} bytes; no index has more than {MAX_INDEX:,}."
        return None, [Finding("FI030", "error", "starts", choice.index_name, message, {"size": size})]
    raw = texts[choice.index_name]
    if isinstance(raw, Exception):
        return None, [Finding("FI022", "error", "starts", choice.index_name, f"{raw}.")]
    return indexes.read_index(source, choice.index_name, raw)


def _divide(choice: Choice, index: Index | None, listing: Sequence[SourceFile]) -> tuple[list[str], list[str]]:
    """(files whose tensors count, files beside them), by name."""
    used, stray = list(choice.used), list(choice.stray)
    if index is None:
        return used, stray
    named = set(index.weight_map.values())
    there = {file.name for file in listing}
    inside = sorted(named & there)
    return inside, sorted((set(used) | set(stray)) - set(inside))
