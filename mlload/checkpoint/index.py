"""`*.index.json`: which tensor lies in which file, and whether that is true."""

from __future__ import annotations

from itertools import repeat
from operator import itemgetter
from typing import Any

from mlload.checkpoint import hints, json_text
from mlload.checkpoint.checkpoint import Index
from mlload.checkpoint.finding import Finding
from mlload.checkpoint.fold import LONGEST, fold_names
from mlload.checkpoint.json_text import BadJson, StrictObject, kind_of, quote
from mlload.checkpoint.sources.base import Source
from mlload.checkpoint.tensor import TensorRef


def read_index(source: Source, name: str, raw: bytes) -> tuple[Index | None, list[Finding]]:
    """The index in `raw`, without the entries that cannot be true; None where it is no index."""
    findings: list[Finding] = []

    def error(code: str, message: str, numbers: dict[str, Any] | None = None) -> None:
        way_out = (hints.repair_index(source), hints.download_again(source, name))
        findings.append(Finding(code, "error", "starts", name, message, numbers or {}, way_out))

    try:
        value = json_text.parse_object(raw)
    except BadJson as cause:
        error("FI030", f"{name} {cause}.")
        return None, findings
    weight_map = value.get("weight_map")
    if not isinstance(weight_map, dict):
        told = "has no weight_map" if "weight_map" not in value else f"has {kind_of(weight_map)} as its weight_map"
        error("FI030", f"{name} {told}; it must map tensor names to file names.")
        return None, findings
    if not set(map(type, weight_map.values())) <= {str}:
        wrong = [key for key, file in weight_map.items() if type(file) is not str]
        message = (
            f"{name}: {len(wrong)} of {len(weight_map)} entries name no file, first {quote(wrong[0])}: "
            f"{kind_of(weight_map[wrong[0]])}."
        )
        error("FI030", message, {"wrong": len(wrong), "entries": len(weight_map)})
        weight_map = {key: file for key, file in weight_map.items() if type(file) is str}
    outside = sorted({file for file in set(weight_map.values()) if leads_outside(file)})
    if outside:
        count = sum(1 for file in weight_map.values() if file in set(outside))
        message = f"{name} leads out of its folder: {count} entries name {quote(outside[0])}; those files are not read."
        error("FI037", message, {"entries": count, "files": len(outside)})
        refused = set(outside)
        weight_map = {key: file for key, file in weight_map.items() if file not in refused}
    if not _every_key_once(raw, value):
        twice = _duplicates(raw)
        if twice:
            message = (
                f"{name} names {len(twice)} {'tensors' if len(twice) > 1 else 'tensor'} twice, first {quote(twice[0])}."
            )
            error("FI039", message, {"duplicates": len(twice)})
    metadata = value.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, float) and total.is_integer() and abs(total) < 2**63:
        total = int(total)
    if total is not None and (type(total) is not int or total < 0):
        message = f"{name}: total_size is {kind_of(total)}, which is no number of bytes."
        findings.append(Finding("FI036", "info", "starts", name, message))
        total = None
    return Index(name, weight_map, total), findings


def leads_outside(file: str) -> bool:
    """An absolute path, one with "..", a drive letter, a backslash or a NUL: no file of this checkpoint."""
    return (
        not file
        or file.startswith(("/", "~"))
        or "\\" in file
        or "\0" in file
        or file[1:2] == ":"
        or ".." in file.split("/")
    )


def _every_key_once(raw: bytes, value: dict[str, Any]) -> bool:
    """A cheap proof that no key came twice: without escapes, each text of the result took two quotes."""
    if b"\\" in raw or not set(map(type, value["weight_map"].values())) <= {str}:
        return False
    weight_map = value["weight_map"]
    strings = 0
    for entry in value.values():
        strings += 1
        if entry is not weight_map:
            strings += count_strings(entry)
    strings += 2 * len(weight_map)
    return raw.count(b'"') == 2 * strings


def count_strings(value: Any) -> int:
    """Texts in a JSON value, keys included."""
    count, stack = 0, [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            count += 1
        elif isinstance(item, dict):
            count += len(item)
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return count


def _duplicates(raw: bytes) -> tuple[str, ...]:
    try:
        value = json_text.parse_strict(raw)
    except BadJson:
        return ()
    weight_map = value["weight_map"]
    return tuple(value.duplicates) + (weight_map.duplicates if isinstance(weight_map, StrictObject) else ())


def missing_files(source: Source, index: Index, present: set[str], unread: set[str]) -> list[Finding]:
    """Files that the index names and that are not there, with the layers that they hold.

    unread: files that are there and could not be read; their own findings tell why.
    """
    held: dict[str, list[str]] = {}
    for tensor, file in index.weight_map.items():
        if file not in present and file not in unread:
            held.setdefault(file, []).append(tensor)
    findings = []
    for file in sorted(held):
        tensors = held[file]
        message = (
            f"{index.name} names {file if len(file) <= LONGEST else quote(file, LONGEST)}, which is not there: "
            f"{len(tensors):,} "
            f"{'tensors are' if len(tensors) > 1 else 'tensor is'} missing ({fold_names(tensors)})."
        )
        numbers = {"tensors": len(tensors), "file": file}
        hint = (hints.download_again(source, file),)
        findings.append(Finding("FI031", "error", "starts", file, message, numbers, hint))
    return findings


def compare(
    source: Source, index: Index, by_file: dict[str, list[TensorRef]], tensors: dict[str, TensorRef]
) -> list[Finding]:
    """The index against the headers, both ways.

    by_file: name of each file whose header was read -> its tensors
    tensors: the union of these
    """
    findings: list[Finding] = []
    weight_map = index.weight_map
    if not _agree(weight_map, by_file):
        own = {file: {ref.name for ref in refs} for file, refs in by_file.items()}
        lacking: dict[str, list[str]] = {}
        for tensor, file in weight_map.items():
            names = own.get(file)
            if names is not None and tensor not in names:
                lacking.setdefault(file, []).append(tensor)
        findings += [_lacks(source, index, file, names, own, by_file) for file, names in lacking.items()]
        unnamed: dict[str, list[str]] = {}
        for file, refs in by_file.items():
            for ref in refs:
                if ref.name not in weight_map:
                    unnamed.setdefault(file, []).append(ref.name)
        findings += [_unnamed(source, index, file, names) for file, names in unnamed.items()]
    if index.total_size is not None and not findings:
        total = sum(map(itemgetter(5), tensors.values()))
        whole = all(file in by_file for file in set(weight_map.values()))
        if whole and total != index.total_size:
            message = (
                f"{index.name} claims total_size {index.total_size:,}; the tensors take {total:,} bytes "
                f"({total - index.total_size:+,})."
            )
            numbers = {"total_size": index.total_size, "bytes": total}
            findings.append(
                Finding("FI036", "info", "starts", index.name, message, numbers, (hints.repair_index(source),))
            )
    return findings


def _agree(weight_map: dict[str, str], by_file: dict[str, list[TensorRef]]) -> bool:
    """True when every tensor lies where the index says, and each is named: the usual case, at little cost."""
    located: dict[str, str] = {}
    for file, refs in by_file.items():
        located.update(zip(map(itemgetter(0), refs), repeat(file), strict=False))
    return located == weight_map


def _lacks(
    source: Source,
    index: Index,
    file: str,
    names: list[str],
    own: dict[str, set[str]],
    by_file: dict[str, list[TensorRef]],
) -> Finding:
    elsewhere = next((other for other, there in own.items() if names[0] in there), None)
    where = f"it lies in {elsewhere}" if elsewhere else "no file holds it"
    count = len(names)
    what = f"{quote(names[0])} is not in its header ({where})"
    if count > 1:
        found = sum(1 for name in names if any(name in there for there in own.values()))
        what = f"{count:,} tensors are not in its header, {found:,} of them lie in other files ({fold_names(names)})"
    message = f"{index.name} maps {count:,} {'tensors' if count > 1 else 'tensor'} to {file}, and {what}."
    # The engine reads whole files: a tensor in another file is found all the same.
    severity: Any = "error" if any(not any(n in there for there in own.values()) for n in names) else "warning"
    numbers = {"tensors": count, "entries": len(index.weight_map), "in_files": sum(map(len, by_file.values()))}
    hint = (hints.download_again(source, file), hints.repair_index(source))
    return Finding("FI032", severity, "right", f"{file}: {names[0]}", message, numbers, hint)


def _unnamed(source: Source, index: Index, file: str, names: list[str]) -> Finding:
    message = (
        f"{file} holds {len(names):,} {'tensors' if len(names) > 1 else 'tensor'} that {index.name} does not name "
        f"({fold_names(names)}): some readers load them, others do not."
    )
    numbers = {"tensors": len(names)}
    return Finding("FI033", "warning", "right", file, message, numbers, (hints.repair_index(source),))
