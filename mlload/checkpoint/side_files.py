"""The small JSON files of a checkpoint: config.json and its companions."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Any

from mlload.checkpoint import hints, json_text
from mlload.checkpoint.finding import Finding, Hint, Question, Severity
from mlload.checkpoint.headers import Headers
from mlload.checkpoint.json_text import MAX_SIDE_FILE, BadJson
from mlload.checkpoint.sniff import lfs_fields, sniff
from mlload.checkpoint.sources.base import Source, SourceFile
from mlload.checkpoint.weight_files import kind_of_file

# Large, and of no use to a verdict; read by whoever needs them.
SKIPPED = frozenset({"tokenizer.json", "vocab.json", "merges.json"})
# An engine does not start when one of these cannot be parsed.
NEEDED = frozenset({"config.json", "tokenizer_config.json", "special_tokens_map.json", "params.json"})
# Where it is no JSON the engine takes config.json's ids in its place (vLLM 0.33.0 transformers_utils/config.py:1283),
# and sampling has no defaults; where it is JSON and no object, the engine stops.
GENERATION = "generation_config.json"
# Files with the same fault that are told one by one, and how many of them are told where there are more.
MANY, FEW = 20, 3


def names(listing: Sequence[SourceFile]) -> list[str]:
    """The JSON files at the top of a listing that are worth parsing, indexes apart."""
    return [
        file.name
        for file in listing
        if file.name.endswith(".json")
        and "/" not in file.name
        and not file.name.endswith(".index.json")
        and file.name not in SKIPPED
        and file.problem is None
        and file.size <= MAX_SIDE_FILE
    ]


def parse(
    source: Source, texts: dict[str, bytes | Exception], sizes: dict[str, SourceFile]
) -> tuple[dict[str, Any], list[Finding]]:
    """Name -> value of every file that parses, and a finding for every one that does not."""
    values: dict[str, Any] = {}
    findings: list[Finding] = []

    def problem(code: str, name: str, message: str, hint: Hint) -> None:
        severity: Severity = "error" if name in NEEDED else "warning"
        if name == GENERATION:
            message = f"{message.removesuffix('.')}; the engine goes on with the ids of config.json."
        question: Question = "right" if name == GENERATION else "starts"
        findings.append(Finding(code, severity, question, name, message, {"size": sizes[name].size}, (hint,)))

    for name, raw in texts.items():
        again = hints.download_again(source, name)
        if isinstance(raw, Exception):
            problem("FI022", name, f"{raw}.", again)
            continue
        try:
            values[name] = json_text.parse(raw)
        except BadJson as cause:
            content = sniff(raw[:512])
            if not raw:
                problem("FI004", name, f"{name} is empty: 0 bytes, where JSON is expected.", again)
            elif content.kind == "lfs":
                real = lfs_fields(raw)[1]
                promised = f" of a file of {real:,} bytes" if real else ""
                message = f"{name} is a git-lfs pointer ({len(raw)} bytes of text){promised}: it was never fetched."
                problem("FI001", name, message, hints.pull_lfs(source, [name]))
            elif content.kind in ("html", "xml"):
                message = f"{name} is {content.what} of {len(raw):,} bytes: a download saved the error, not the file."
                problem("FI002", name, message, again)
            else:
                problem("FI061", name, f"{name} {cause}.", again)
            continue
        if name in (*NEEDED, GENERATION) and not isinstance(values[name], dict):
            message = f"{name} holds {json_text.kind_of(values[name])} where an object {{...}} is expected."
            findings.append(Finding("FI061", "error", "starts", name, message, {"size": sizes[name].size}, (again,)))
    return values, folded(findings)


def folded(findings: list[Finding]) -> list[Finding]:
    """Where a great many files that no engine needs have one fault (a data set beside the model), a few of them."""
    kept, more = [], dict[str, list[Finding]]()
    for finding in findings:
        if finding.severity == "error":
            kept.append(finding)
        else:
            more.setdefault(finding.code, []).append(finding)
    for code, same in more.items():
        kept += same if len(same) <= MANY else same[:FEW]
        if len(same) > MANY:
            rest = same[FEW:]
            message = f"{len(rest):,} more files have this fault, {rest[0].where} to {rest[-1].where}."
            kept.append(Finding(code, "warning", "starts", rest[0].where, message, {"files": len(rest)}))
    return kept


def judge(
    source: Source,
    form: str,
    json_files: dict[str, Any],
    sizes: dict[str, SourceFile],
    listing: Sequence[SourceFile],
    used: Sequence[str],
    headers: Headers,
) -> list[Finding]:
    """What the presence and absence of files says about the whole."""
    findings: list[Finding] = []
    label = source.label
    for file in listing:
        if file.problem is not None and kind_of_file(file.name) in ("json", "other"):
            severity: Severity = "error" if file.name in NEEDED else "warning"
            code = "FI023" if file.problem.startswith("dangling") else "FI022"
            message = f"{file.name}: {file.problem}."
            hint = (hints.download_again(source, file.name),)
            findings.append(Finding(code, severity, "starts", file.name, message, {}, hint))
        elif file.size > MAX_SIDE_FILE and file.name in NEEDED:
            message = f"{file.name} has {file.size:,} bytes; nothing that is called so has more than {MAX_SIDE_FILE:,}."
            findings.append(Finding("FI061", "error", "starts", file.name, message, {"size": file.size}))
    has_config = "config.json" in sizes or "params.json" in sizes
    if form == "adapter":
        findings.append(adapter(source, json_files, has_config))
    elif not has_config and form in ("safetensors", "torch", "sharded_state", "tensorizer") and source.kind != "file":
        message = f"{label} has weights and no config.json: nothing tells the architecture."
        hint = (hints.download_again(source, "config.json"),)
        findings.append(Finding("FI060", "error", "starts", "config.json", message, {}, hint))
    if form == "safetensors":
        findings += without_format(used, headers)
    if form == "gguf":
        findings += foreign_config(json_files)
    if form == "none":
        findings.append(without_weights(source, listing, has_config))
    return findings


def adapter(source: Source, json_files: dict[str, Any], has_config: bool) -> Finding:
    """A LoRA adapter is no model: it names its base."""
    config = json_files.get("adapter_config.json")
    config = config if isinstance(config, dict) else {}
    base = config.get("base_model_name_or_path")
    rank = config.get("r")
    of = f" of {json_text.quote(base)}" if isinstance(base, str) and base else " of a base model that it does not name"
    ranked = f" (rank {rank})" if type(rank) is int and 0 < rank < 10**6 else ""
    kind = config.get("peft_type")
    called = f"a {kind} adapter" if isinstance(kind, str) and kind.isalnum() and len(kind) < 20 else "an adapter"
    message = (
        f"{source.label} is {called}{of}{ranked}, and no model: an engine needs the base's weights and config.json."
    )
    served = base if isinstance(base, str) and base and json_text.quote(base) == f"'{base}'" else "BASE"
    rank_flag = f" --max-lora-rank {rank}" if ranked and isinstance(rank, int) and rank > 16 else ""
    hint = Hint(
        "Serve it with its base, or merge it into the base.",
        f"vllm serve {served} --enable-lora --lora-modules adapter={shlex.quote(source.label)}{rank_flag}",
    )
    numbers = {"rank": rank if ranked else None, "base": base if isinstance(base, str) else None}
    return Finding("FI063", "error", "starts", "adapter_config.json", message, numbers, (hint,))


def without_format(used: Sequence[str], headers: Headers) -> list[Finding]:
    """Files whose `__metadata__` does not tell `format`: of interest to some versions of transformers only."""
    lacking = [name for name in used if name in headers.by_file and "format" not in headers.metadata.get(name, {})]
    if not lacking:
        return []
    count = len(lacking)
    message = (
        f"{lacking[0]} has no format in its __metadata__{f' (and {count - 1} others)' if count > 1 else ''}: nothing "
        "that vLLM needs, some versions of transformers ask for format=pt."
    )
    return [Finding("FI018", "info", "starts", lacking[0], message, {"files": count})]


def foreign_config(json_files: dict[str, Any]) -> list[Finding]:
    """GGUF weights beside a config.json that declares another format: the weights tell the truth."""
    config = json_files.get("config.json")
    declared = config.get("quantization_config") if isinstance(config, dict) else None
    if not isinstance(declared, dict):
        return []
    method = json_text.quote(str(declared.get("quant_method") or "?")[:40])
    message = (
        f"config.json declares the quantization method {method} and the weights are GGUF: it describes other files, "
        "and the weights win."
    )
    hint = Hint("Remove quantization_config from config.json, or move the GGUF files to a folder of their own.")
    return [Finding("FI047", "warning", "starts", "config.json", message, {"quant_method": method}, (hint,))]


def without_weights(source: Source, listing: Sequence[SourceFile], has_config: bool) -> Finding:
    """Nothing to load at the top of the source: a config alone is fine, weights elsewhere are not."""
    below: dict[str, int] = {}
    for file in listing:
        folder, slash, _ = file.name.rpartition("/")
        if slash and kind_of_file(file.name) in ("safetensors", "gguf", "torch"):
            below[folder] = below.get(folder, 0) + 1
    label = source.label
    if below:
        folder, count = max(below.items(), key=lambda item: item[1])
        below_it = f"{count} {'lies' if count == 1 else 'lie'} in {folder}/"
        message = f"{label} has no weight files at its top; {below_it}: engines read the top folder only."
        hint = (Hint("Point at that folder.", f"mlload inspect {shlex.quote(label.rstrip('/') + '/' + folder)}"),)
        return Finding("FI064", "error", "starts", folder, message, {"files": count}, hint)
    own = label.replace(os.sep, "/").rpartition("/")[2]
    if source.kind == "file" and own not in ("config.json", "params.json", "adapter_config.json"):
        message = f"{label} is neither a weight file nor a config.json."
        folder = os.path.dirname(label) or "."
        hint = (Hint("ask about its folder", f"mlload inspect {shlex.quote(folder)}"),)
        return Finding("FI064", "error", "starts", label, message, {"files": 1}, hint)
    if has_config:
        message = f"{label} has a config and no weight files: sizes are those that the config promises."
        return Finding("FI064", "info", "starts", label, message)
    message = f"{label} holds neither weights (.safetensors, .gguf, .bin) nor a config.json "
    message += f"({len(listing):,} {'file' if len(listing) == 1 else 'files'})."
    return Finding("FI064", "error", "starts", label, message, {"files": len(listing)})
