"""Weight files that lie beside those that an engine reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlload.checkpoint import hints
from mlload.checkpoint.checkpoint import Index
from mlload.checkpoint.finding import Finding, Severity
from mlload.checkpoint.fold import fold_names
from mlload.checkpoint.sources.base import Source
from mlload.checkpoint.tensor import TensorRef
from mlload.checkpoint.weight_files import Choice, kind_of_file


def worth_reading(choice: Choice, stray: Sequence[str]) -> list[str]:
    """Stray files whose headers tell something: safetensors beside safetensors. A .bin set or other GGUF
    quantizations beside the weights are customary, and their headers cost much to read from afar."""
    if choice.format not in ("safetensors", "sharded_state"):
        return []
    return [name for name in stray if kind_of_file(name) == "safetensors"]


def stray_findings(
    source: Source,
    choice: Choice,
    index: Index | None,
    stray: Sequence[str],
    sizes: Mapping[str, int],
    by_file: Mapping[str, list[TensorRef]],
    tensors: Mapping[str, TensorRef],
) -> list[Finding]:
    """One finding for every stray safetensors file, one for all files of another kind."""
    findings: list[Finding] = []
    if choice.passed_over:
        used = choice.used
        taken = f"{used[0]} and its like are" if len(used) > 1 else f"{', '.join(used)} is"
        message = f"There is more than one set of weights: {taken} taken, {choice.passed_over} not."
        findings.append(Finding("FI038", "info", "starts", source.label, message))
    others: dict[str, list[str]] = {}
    for name in stray:
        kind = kind_of_file(name)
        if kind != "safetensors":
            others.setdefault(kind, []).append(name)
        elif not (choice.passed_over and name.startswith("consolidated")):
            findings.append(_one(source, choice, index, name, sizes[name], by_file.get(name, []), tensors))
    for kind, names in others.items():
        if kind == choice.format == "gguf":
            continue  # told by FI038
        total = sum(sizes[name] for name in names)
        what = f"{names[0]} and {len(names) - 1} more are" if len(names) > 1 else f"{names[0]} is"
        message = f"{what} not read by engines, which take the {choice.format} files ({total:,} bytes)."
        numbers = {"files": len(names), "size": total}
        findings.append(Finding("FI034", "info", "right", names[0], message, numbers))
    return findings


def _one(
    source: Source,
    choice: Choice,
    index: Index | None,
    name: str,
    size: int,
    refs: Sequence[TensorRef],
    tensors: Mapping[str, TensorRef],
) -> Finding:
    severity: Severity = "warning" if refs else "info"
    numbers = {"size": size, "tensors": len(refs)}
    what = holds(refs, tensors) if refs else "nothing names it"
    if index is None and name.startswith("adapter_model"):
        message = (
            f"{name} ({size:,} bytes) is an adapter among the weights, and there is no index: vLLM reads every "
            f".safetensors file of the folder; {what}."
        )
        return Finding("FI034", "warning", "starts", name, message, numbers)
    owner = index.name if index else f"the {choice.format} set"
    message = f"{name} ({size:,} bytes) is not part of {owner}, and engines do not read it: {what}."
    # An index can take in what it forgot; a second copy of what it has is for the user to delete.
    forgotten = any(ref.name not in tensors for ref in refs)
    hint = (hints.repair_index(source),) if index and forgotten else ()
    return Finding("FI034", severity, "right", name, message, numbers, hint)


def holds(refs: Sequence[TensorRef], tensors: Mapping[str, TensorRef]) -> str:
    """What a stray file's tensors are to the ones in use."""
    own = [ref.name for ref in refs if ref.name not in tensors]
    unlike = sum(
        1
        for ref in refs
        if ref.name in tensors and (tensors[ref.name].dtype, tensors[ref.name].shape) != (ref.dtype, ref.shape)
    )
    pieces = []
    if own:
        pieces.append(f"{len(own):,} tensors that no used file holds ({fold_names(own)})")
    if len(refs) > len(own):
        told = f", {unlike:,} of them with another dtype or shape" if unlike else ""
        pieces.append(f"{len(refs) - len(own):,} of the names that are used{told}")
    return f"it holds {' and '.join(pieces)}"
