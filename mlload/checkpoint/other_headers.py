"""GGUF, torch and tensorizer files of a checkpoint: their readers' results as tensors and findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlload.checkpoint import hints
from mlload.checkpoint.finding import Finding, Hint, Question, Severity
from mlload.checkpoint.gguf import Bad, GgufHeader, read_gguf
from mlload.checkpoint.json_text import quote
from mlload.checkpoint.sniff import sniff
from mlload.checkpoint.sources.base import Source, SourceFile

if TYPE_CHECKING:
    from mlload.checkpoint.headers import Headers

# What is odd and stops no reader.
WARNINGS = frozenset({"FI048"})


def read_one(source: Source, kind: str, file: SourceFile, number: int, result: Headers) -> bytes:
    """Read one file's header into `result`; returns the bytes that stand for it in a fingerprint."""
    if kind == "gguf":
        return _gguf(source, file, number, result)
    if kind == "torch":
        return _torch(source, file, number, result)
    return _tensorizer(source, file, number, result)


def _finding(source: Source, name: str, code: str, message: str, numbers: dict[str, Any]) -> Finding:
    severity: Severity = "warning" if code in WARNINGS else "error"
    question: Question = "starts"
    hint = (hints.pull_lfs(source, [name]),) if code == "FI001" else (hints.download_again(source, name),)
    where = f"{name}: {numbers['tensor']}" if "tensor" in numbers else name
    return Finding(code, severity, question, where, message, numbers, hint)


def _gguf(source: Source, file: SourceFile, number: int, result: Headers) -> bytes:
    name = file.name
    if file.size == 0:
        message = f"{name} is empty: 0 bytes, where a header is expected."
        result.findings.append(_finding(source, name, "FI004", message, {"size": 0}))
        result.unread.add(name)
        return b""
    head = source.read(name, 0, min(512, file.size))
    content = sniff(head)
    if content.kind and content.kind != "gguf":
        if content.kind == "lfs":
            message = f"{name} is a git-lfs pointer ({file.size} bytes of text): the weights were never fetched."
            code = "FI001"
        elif content.kind in ("html", "xml", "json", "text"):
            code = "FI002"
            message = f"{name} is {content.what} of {file.size:,} bytes: a download saved the error, not the file."
        else:
            code, message = "FI021", f"{name} is {content.what} of {file.size:,} bytes under a GGUF name."
        result.findings.append(_finding(source, name, code, message, {"size": file.size}))
        result.unread.add(name)
        return head
    header = read_gguf(source, name, file.size, number)
    for bad in header.problems:
        result.findings.append(_finding(source, name, bad.code, f"{name}: {bad.message}.", bad.numbers))
    result.findings += _gguf_keys(name, header)
    result.metadata[name] = header.metadata
    if header.tensors or not header.problems:
        result.by_file[name] = header.tensors
    else:
        result.unread.add(name)
    return header.raw


def _gguf_keys(name: str, header: GgufHeader) -> list[Finding]:
    """Keys that engines need: the architecture, except in the later parts of a split model."""
    if header.problems or header.metadata.get("split.no"):
        return []
    if isinstance(header.metadata.get("general.architecture"), str):
        return []
    message = f"{name} has no general.architecture: nothing tells which model its {len(header.tensors):,} tensors are."
    return [Finding("FI049", "error", "starts", name, message, {"tensors": len(header.tensors)})]


def _torch(source: Source, file: SourceFile, number: int, result: Headers) -> bytes:
    from mlload.checkpoint.torch_file import read_torch

    name = file.name
    listed = read_torch(source, name, file.size, number)
    result.findings += [
        _finding(source, name, code, f"{name} {message}.", numbers) for code, message, numbers in listed.problems
    ]
    if listed.refused:
        shown = ", ".join(quote(text, 80) for text in listed.refused[:4])
        more = f" and {len(listed.refused) - 4} more" if len(listed.refused) > 4 else ""
        message = (
            f"{name}: unpickling it would import or execute {shown}{more}; torch.load(weights_only=True), which "
            "engines use, refuses it. Nothing of it was executed here."
        )
        hint = (Hint("Do not load it; take the repository's safetensors files.", needs="original weights"),)
        result.findings.append(Finding("FI050", "error", "starts", name, message, {"names": listed.refused[:20]}, hint))
    if listed.nested and not listed.problems:
        message = (
            f"{name} keeps {len(listed.nested):,} tensors below other keys, first {quote(listed.nested[0])}: a "
            "training checkpoint, whose names an engine does not know."
        )
        result.findings.append(Finding("FI052", "warning", "starts", name, message, {"tensors": len(listed.nested)}))
    if listed.tensors or not (listed.problems or listed.refused):
        result.by_file[name] = sorted(listed.tensors, key=lambda ref: ref.offset)
    else:
        result.unread.add(name)
    return listed.pickle


def _tensorizer(source: Source, file: SourceFile, number: int, result: Headers) -> bytes:
    from mlload.checkpoint.tensorizer import read_tensorizer

    name = file.name
    listed = read_tensorizer(source, name, file.size, number)
    result.findings += [
        _finding(source, name, code, f"{name} {message}.", numbers) for code, message, numbers in listed.problems
    ]
    result.metadata[name] = {"version": listed.version, "encrypted": listed.encrypted}
    if listed.tensors or not listed.problems:
        result.by_file[name] = listed.tensors
    else:
        result.unread.add(name)
    return listed.raw


def split_findings(source: Source, used: list[str], result: Headers) -> list[Finding]:
    """A split GGUF model: what its parts say of each other."""
    known = [name for name in used if name in result.metadata and name in result.by_file]
    counts = {name: result.metadata[name].get("split.count") for name in known}
    claimed = {count for count in counts.values() if type(count) is int}
    findings: list[Finding] = []
    if len(claimed) > 1:
        told = ", ".join(f"{name} {count}" for name, count in list(counts.items())[:3])
        bad = Bad("FI044", f"the parts disagree on how many there are ({told})")
        findings.append(
            _finding(source, known[0], bad.code, f"{known[0]}: {bad.message}.", {"counts": sorted(claimed)})
        )
    elif claimed and (count := claimed.pop()) != len(used):
        message = f"{used[0]} says that the model has {count} parts, and {len(used)} are there."
        findings.append(_finding(source, used[0], "FI044", message, {"parts": count, "present": len(used)}))
    elif known and len(known) == len(used):
        total = result.metadata[known[0]].get("split.tensors.count")
        have = sum(len(result.by_file[name]) for name in known)
        if type(total) is int and total != have:
            message = f"{known[0]} says that the model has {total:,} tensors, and its parts hold {have:,}."
            findings.append(_finding(source, known[0], "FI044", message, {"claimed": total, "present": have}))
    return findings
