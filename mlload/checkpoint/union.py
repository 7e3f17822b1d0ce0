"""All tensors of a checkpoint under one roof: what the files say together, and where they contradict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from mlload.checkpoint import hints
from mlload.checkpoint import index as indexes
from mlload.checkpoint.checkpoint import Index
from mlload.checkpoint.finding import Finding, Hint
from mlload.checkpoint.fold import fold_names
from mlload.checkpoint.headers import Headers
from mlload.checkpoint.json_text import quote
from mlload.checkpoint.sources.base import Range, Source, SourceFile
from mlload.checkpoint.stray import stray_findings
from mlload.checkpoint.tensor import TensorRef
from mlload.checkpoint.tensorizer import MARKER
from mlload.checkpoint.weight_files import Choice, numbering, rank_of

COMPARED = 8  # duplicate tensors whose bytes are compared, small ones, on a disk only
COMPARED_BYTES = 256 * 1024


@dataclass
class Union:
    tensors: dict[str, TensorRef] = field(default_factory=dict)
    stray: dict[str, TensorRef] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def unite(
    source: Source,
    choice: Choice,
    index: Index | None,
    used: Sequence[str],
    stray: Sequence[str],
    listing: Sequence[SourceFile],
    headers: Headers,
) -> Union:
    """Merge the tensors of `used` files, gather those of `stray` files, and compare all with the index."""
    result = Union()
    by_file = {name: headers.by_file[name] for name in used if name in headers.by_file}
    if choice.format == "sharded_state":
        _ranks(result, by_file, used)
    else:
        _merge(source, result, index, by_file, listing)
    for name in stray:
        for ref in headers.by_file.get(name, ()):
            result.stray.setdefault(ref.name, ref)
    if index is not None:
        there = {file.name for file in listing}
        result.findings += indexes.missing_files(source, index, there, headers.unread)
        result.findings += indexes.compare(source, index, by_file, result.tensors)
    elif choice.format in ("safetensors", "torch", "gguf"):
        result.findings += _unnumbered(source, choice, used)
        if choice.format == "gguf" and not result.findings:
            from mlload.checkpoint.other_headers import split_findings

            result.findings += split_findings(source, list(used), headers)
    sizes = {file.name: file.size for file in listing}
    result.findings += stray_findings(source, choice, index, stray, sizes, headers.by_file, result.tensors)
    result.findings += _empty(by_file)
    return result


def _merge(
    source: Source,
    result: Union,
    index: Index | None,
    by_file: dict[str, list[TensorRef]],
    listing: Sequence[SourceFile],
) -> None:
    tensors = result.tensors
    total = 0
    for refs in by_file.values():
        total += len(refs)
        tensors.update(zip(map(itemgetter(0), refs), refs, strict=True))
    if len(tensors) == total or MARKER in tensors:
        return  # ranks of a tensorizer folder hold a share each under the same names
    copies: dict[str, list[TensorRef]] = {}
    for refs in by_file.values():
        for ref in refs:
            copies.setdefault(ref.name, []).append(ref)
    twice = {name: refs for name, refs in copies.items() if len(refs) > 1}
    for name, refs in twice.items():
        named = index.weight_map.get(name) if index else None
        tensors[name] = next((ref for ref in refs if listing[ref.file].name == named), refs[0])
    result.findings.append(_duplicates(source, twice, listing))


def _duplicates(source: Source, twice: dict[str, list[TensorRef]], listing: Sequence[SourceFile]) -> Finding:
    first, refs = next(iter(twice.items()))
    files = " and ".join(listing[ref.file].name for ref in refs[:3])
    unlike = [name for name, refs in twice.items() if len({(ref.dtype, ref.shape) for ref in refs}) > 1]
    count = len(twice)
    if unlike:
        bytes_are = f"{len(unlike)} of them with another dtype or shape, first {quote(unlike[0])}"
        equal: bool | None = False
    else:
        equal, bytes_are = _same_bytes(source, twice, listing)
    message = (
        f"{count:,} {'tensors are' if count > 1 else 'tensor is'} in more than one file ({fold_names(twice)}), first "
        f"{quote(first)} in {files}: {bytes_are}; which one counts depends on the loader."
    )
    severity: Any = "warning" if not unlike and equal is not False else "error"
    numbers = {"tensors": count, "bytes": sum(refs[0].nbytes for refs in twice.values()), "equal": equal}
    hint = Hint("Write the weights anew, each tensor once.", hints.repair(source))
    return Finding("FI035", severity, "right", first, message, numbers, (hint,))


def _same_bytes(
    source: Source, twice: dict[str, list[TensorRef]], listing: Sequence[SourceFile]
) -> tuple[bool | None, str]:
    """Whether copies hold equal bytes, where that can be seen cheaply."""
    small = [refs for refs in twice.values() if refs[0].nbytes <= COMPARED_BYTES][:COMPARED]
    if source.remote or not small:
        return None, "equal in dtype and shape, bytes not compared"
    for refs in small:
        pieces = source.read_many([Range(listing[ref.file].name, ref.offset, ref.nbytes) for ref in refs])
        if any(piece != pieces[0] for piece in pieces):
            return False, f"their bytes differ ({quote(refs[0].name)})"
    if len(small) == len(twice):
        return True, "equal in every byte"
    return None, f"equal in the {len(small)} that were compared"


def _ranks(result: Union, by_file: dict[str, list[TensorRef]], used: Sequence[str]) -> None:
    """vLLM's sharded_state: each rank holds its own share under the same names."""
    parts: dict[str, set[int]] = {}
    for name in used:
        rank = rank_of(name)
        if rank is None:
            continue
        parts.setdefault(rank.key, set()).add(rank.part)
        for ref in by_file.get(name, ()):
            result.tensors[f"{rank.key}/{ref.name}"] = ref
    for key, present in parts.items():
        lacking = sorted(set(range(max(present) + 1)) - present) if max(present) < 100_000 else []
        if lacking:
            message = f"{key} has no part {lacking[0]}, while it has a part {max(present)}: a file is missing."
            result.findings.append(Finding("FI065", "error", "starts", key, message, {"missing": lacking[:20]}))
    coordinates = [tuple(int("".join(c for c in piece if c.isdigit())) for piece in key.split("-")) for key in parts]
    if len({len(place) for place in coordinates}) > 1:
        message = "files of two cuts lie in one folder, by tp rank (model-rank-N) and by stage (model-pp-N-tp-N)."
        result.findings.append(Finding("FI065", "error", "starts", sorted(parts)[0], message, {"ranks": len(parts)}))
    elif coordinates:
        sizes = tuple(max(axis) + 1 for axis in zip(*coordinates, strict=True))
        expected = 1
        for size in sizes:
            expected *= size
        if expected != len(coordinates):
            have = ", ".join(sorted(parts)[:8])
            message = f"{len(coordinates)} of {expected} ranks have files ({have}): others are missing."
            numbers = {"ranks": len(coordinates), "expected": expected}
            result.findings.append(Finding("FI065", "error", "starts", sorted(parts)[0], message, numbers))


def _unnumbered(source: Source, choice: Choice, used: Sequence[str]) -> list[Finding]:
    """Without an index only the numbers in the names tell whether a file is missing."""
    numbers = numbering(used)
    if numbers is None:
        return []
    findings = []
    for name in numbers.missing[:20]:
        message = (
            f"{name} is not there, and the names of the others say {numbers.total} files: its tensors are missing."
        )
        hint = (hints.download_again(source, name),)
        code = "FI044" if choice.format == "gguf" else "FI026"
        question: Any = "starts" if choice.format == "gguf" else "right"
        missing = {"files": numbers.total, "missing": len(numbers.missing)}
        findings.append(Finding(code, "error", question, name, message, missing, hint))
    if not findings and choice.format == "safetensors" and numbers.total > 1:
        message = f"{numbers.total} numbered files and no index: transformers does not load them, vLLM does."
        hint = (hints.repair_index(source),)
        findings.append(Finding("FI027", "warning", "starts", used[0], message, {"files": numbers.total}, hint))
    return findings


def _empty(by_file: dict[str, list[TensorRef]]) -> list[Finding]:
    return [
        Finding("FI019", "warning", "right", name, f"{name} has a header and no tensors in it.", {"tensors": 0})
        for name, refs in by_file.items()
        if not refs
    ]
