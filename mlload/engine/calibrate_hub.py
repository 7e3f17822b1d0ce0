"""Calibration text of a dataset on the Hub: its own files, read by ranges until there is enough.

`hf:ORG/NAME`, `hf:ORG/NAME:SPLIT` or `hf:ORG/NAME:CONFIG/SPLIT`. Text, JSON and CSV need nothing; Parquet needs
pyarrow, and of it only the text's columns are fetched.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from typing import Any

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.hub import HubSource, offline
from mlload.engine.calibrate_rows import TEXT_COLUMNS, row_text

READ = ("parquet", "jsonl", "json", "csv", "txt", "jsonl.gz", "json.gz", "csv.gz", "txt.gz")
# Where the Hub keeps the Parquet that it makes of every dataset, scripts included.
CONVERTED = "refs/convert/parquet"
PIECE = 1 << 20
WHOLE_AT_MOST = 256 << 20


class HubDataset(HubSource):
    """A dataset's files. See `HubSource`."""

    api, prefix, noun = "datasets", "datasets/", "dataset"


def hub_text(spec: str, wanted: int) -> tuple[str, str]:
    """At least `wanted` characters where the split has as many, and what they are of.

    spec: what stands behind "hf:". Raises MlloadError where it cannot be reached, has no such split, or no text.
    """
    name, _, part = spec.partition(":")
    if not name.strip("/"):
        raise MlloadError("--calib hf: takes a dataset's name: hf:ORG/NAME or hf:ORG/NAME:SPLIT")
    if offline():
        raise MlloadError(
            f"the dataset {name} is on the Hub, and HF_HUB_OFFLINE forbids the network",
            hint="--calib builtin, or a file: --calib FILE.txt",
            exit_code=3,
        )
    source = HubDataset(name)
    files = _files(source, part)
    if not files:
        try:
            source = HubDataset(name, CONVERTED)
        except MlloadError:
            raise MlloadError(
                f"{name} has no file that can be read as text ({', '.join(READ[:5])})", hint="--calib FILE.txt"
            ) from None
        files = _files(source, part)
    found: list[str] = []
    for file in files:
        for text in _texts(source, file):
            found.append(text)
            wanted -= len(text)
            if wanted <= 0:
                break
        if wanted <= 0:
            break
    revision = (source.revision or "")[:12]
    return "\n\n".join(found), f"{name}@{revision} ({files[0]}{', ...' if len(files) > 1 else ''})"


def _files(source: HubSource, part: str) -> list[str]:
    """The files of one split, in the order of their names."""
    names = [f.name for f in source.files() if f.name.endswith(tuple("." + suffix for suffix in READ))]
    names = [name for name in names if not name.rpartition("/")[2].startswith((".", "dataset_info"))]
    if not names:
        return []
    config, _, split = part.rpartition("/")
    if config:
        names = _narrowed(source, [n for n in names if config in n.split("/")[:-1]], names, config)
    split = split or ("train" if any(_of_split(name, "train") for name in names) else "")
    if split:
        # One word may also be a configuration.
        chosen = [name for name in names if _of_split(name, split)] or [n for n in names if split in n.split("/")[:-1]]
        names = _narrowed(source, chosen, names, split)
    folders = sorted({name.rpartition("/")[0] for name in names})
    if len(folders) > 1 and not config:
        raise MlloadError(
            f"{source.repo_id} has several configurations: {', '.join(folders[:8])}",
            hint=f"--calib hf:{source.repo_id}:{folders[0].rpartition('/')[2]}/{split or 'train'}",
        )
    formats = sorted({_format(name) for name in names}, key=READ.index)
    return [name for name in names if _format(name) == formats[0]]


def _narrowed(source: HubSource, chosen: list[str], among: list[str], what: str) -> list[str]:
    if not chosen:
        some = ", ".join(among[:5]) + (", ..." if len(among) > 5 else "")
        raise MlloadError(f"{source.repo_id} has nothing called {what}; its files are {some}")
    return chosen


def _of_split(name: str, split: str) -> bool:
    return re.search(rf"(^|[/_.-]){re.escape(split)}([/_.-]|$)", name) is not None


def _format(name: str) -> str:
    return max((suffix for suffix in READ if name.endswith("." + suffix)), key=len)


def _texts(source: HubSource, name: str) -> Iterator[str]:
    """The rows of a file as text, fetched as they are asked for."""
    kind = _format(name)
    if kind == "parquet":
        yield from _parquet(source, name)
        return
    kind, packed = kind.removesuffix(".gz"), kind.endswith(".gz")
    lines = _lines(source, name, packed)
    if kind == "txt":
        yield from ("".join(chunk) for chunk in _by_size(lines))
    elif kind == "csv":
        reader = csv.DictReader(lines)
        for number, row in enumerate(reader, 1):
            yield row_text(row, f"row {number} of {name}")
    else:
        yield from _json(lines, name)


def _json(lines: Iterator[str], name: str) -> Iterator[str]:
    """A row a line, or one list (or {"data": [...]}) that is the whole file."""
    first = next(lines, "")
    try:
        rows: Any = json.loads(first)
        whole = isinstance(rows, list) or not isinstance(rows, dict | str)
    except ValueError:
        whole = True
    if whole:
        try:
            rows = json.loads(first + "".join(lines))
        except ValueError:
            raise MlloadError(f"{name} is no JSON") from None
        rows = next((v for v in rows.values() if isinstance(v, list)), []) if isinstance(rows, dict) else rows
        for number, row in enumerate(rows if isinstance(rows, list) else [], 1):
            yield row_text(row, f"row {number} of {name}")
        return
    yield row_text(rows, f"line 1 of {name}")
    for number, line in enumerate(lines, 2):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError:
                raise MlloadError(f"line {number} of {name} is no JSON") from None
            yield row_text(row, f"line {number} of {name}")


def _lines(source: HubSource, name: str, packed: bool) -> Iterator[str]:
    """Decoded lines, a piece of the file at a time."""
    if packed:
        whole = source.read(name, 0, WHOLE_AT_MOST)
        try:
            with gzip.open(io.BytesIO(whole), "rt", encoding="utf-8", errors="replace") as handle:
                yield from handle
        except (OSError, EOFError, zlib.error):
            raise MlloadError(f"{name} is no gzip file, or larger than {WHOLE_AT_MOST >> 20} MiB") from None
        return
    rest, at = b"", 0
    while True:
        piece = source.read(name, at, PIECE)
        at += len(piece)
        *whole_lines, rest = (rest + piece).split(b"\n")
        for line in whole_lines:
            yield line.decode("utf-8", "replace") + "\n"
        if len(piece) < PIECE:
            break
    if rest:
        yield rest.decode("utf-8", "replace")


def _by_size(lines: Iterator[str]) -> Iterator[list[str]]:
    """Lines in runs of some kilobytes."""
    held: list[str] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size > 1 << 16:
            yield held
            held, size = [], 0
    if held:
        yield held


def _parquet(source: HubSource, name: str) -> Iterator[str]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise MlloadError(
            f"{source.repo_id} is stored as Parquet, which needs pyarrow",
            hint="pip install 'mlload[datasets]', or --calib FILE.txt",
        ) from None
    size = next(f.size for f in source.files() if f.name == name)
    try:
        file = parquet.ParquetFile(pyarrow.PythonFile(_Ranged(source, name, size), mode="r"))
        there = file.schema_arrow.names
        column = next((wanted for wanted in TEXT_COLUMNS if wanted in there), None)
        if column is None:
            raise MlloadError(f"{name} has no column of text; its columns are {', '.join(there[:12])}")
        number = 0
        for group in range(file.num_row_groups):
            for batch in file.iter_batches(1024, row_groups=[group], columns=[column]):
                for row in batch.to_pylist():
                    number += 1
                    yield row_text(row, f"row {number} of {name}")
    except (pyarrow.ArrowException, OSError) as error:
        raise MlloadError(f"{name} is no Parquet file that can be read: {str(error).splitlines()[0][:120]}") from error


class _Ranged(io.RawIOBase):
    """A file of the Hub as a file object whose reads are ranges."""

    def __init__(self, source: HubSource, name: str, size: int) -> None:
        self.source, self.name, self.size, self.at = source, name, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        return self.at

    def read(self, size: int = -1) -> bytes:
        length = self.size - self.at if size is None or size < 0 else min(size, self.size - self.at)
        found = self.source.read(self.name, self.at, length)
        self.at += len(found)
        return found
