"""Facts of a checkpoint that `inspect` shows and no plan needs: quantization in figures, files by purpose."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.plan.fold import fold_numbers
from mlload.plan.model import Model
from mlload.quant.spec import KVScheme, Scheme

# One of these sets of files is a tokenizer that engines can read; the first that is complete is named.
TOKENIZERS: tuple[tuple[str, ...], ...] = (
    ("tokenizer.json",),
    ("tekken.json",),
    ("tokenizer.model",),
    ("tokenizer.model.v3",),
    ("spiece.model",),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
    ("tiktoken.model",),
)
# Problems that mean that an index and the headers disagree, or that it cannot be used.
INDEX_CODES = frozenset({"FI030", "FI031", "FI032", "FI033", "FI037", "FI039"})
WEIGHT_KINDS = frozenset({"safetensors", "gguf", "torch", "tensorizer"})


class SchemeUse(NamedTuple):
    """One scheme, how many parameters it stores, and in how many bits each with everything that belongs to it."""

    scheme: Scheme
    parameters: int
    effective_bits: float


@dataclass(frozen=True, slots=True)
class Quantization:
    """method, declared_in, evidence: as in `QuantSpec`
    schemes:        the most parameters first
    effective_bits: of all quantized weights together: stored bits, scales and zeros included, per parameter
    unquantized:    weights with two or more dims that stay in floats, folded, the largest first
    kv:             what the checkpoint asks of the KV cache
    """

    method: str
    declared_in: str
    schemes: tuple[SchemeUse, ...]
    effective_bits: float | None
    unquantized: tuple[str, ...]
    kv: KVScheme | None
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Files:
    """weights:       files that an engine would read; weight_bytes: their sizes, stray ones apart
    stray:         weight files that nothing names
    index:         name of the index file, None without one; index_agrees: it names the tensors that are there
    tokenizer:     files that make one, None when there is none
    chat_template: where it was found, None when nowhere
    """

    weights: tuple[str, ...]
    weight_bytes: int
    stray: tuple[str, ...]
    total: int
    index: str | None
    index_agrees: bool | None
    tokenizer: str | None
    chat_template: str | None


class Share(NamedTuple):
    """Bytes (and parameters) of one component, or of one dtype where there is no model."""

    name: str
    nbytes: int
    parameters: int | None


def quantization_of(model: Model) -> Quantization | None:
    if model.quant is None:
        return None
    stored: dict[Scheme, list[int]] = {}
    kept: dict[str, tuple[int, list[int]]] = {}
    for param in model.params:
        if param.alias or param.spec.draft:
            continue
        if param.scheme is not None:
            use = stored.setdefault(param.scheme, [0, 0])
            use[0] += param.elements
            use[1] += param.disk_bytes
        elif len(param.spec.shape) > 1 and param.spec.op in ("linear", "embedding", "experts"):
            nbytes, layers = kept.setdefault(param.spec.module, (0, []))
            kept[param.spec.module] = (nbytes + param.disk_bytes, [*layers, *(param.spec.layers or ())])
    uses = [SchemeUse(scheme, count, 8 * nbytes / count) for scheme, (count, nbytes) in stored.items() if count]
    elements = sum(count for count, _ in stored.values())
    return Quantization(
        method=model.quant.method,
        declared_in=model.quant.declared_in,
        schemes=tuple(sorted(uses, key=lambda use: -use.parameters)),
        effective_bits=8 * sum(nbytes for _, nbytes in stored.values()) / elements if elements else None,
        unquantized=tuple(_folded(kept)),
        kv=model.quant.kv,
        evidence=model.quant.evidence,
    )


def _folded(kept: dict[str, tuple[int, list[int]]]) -> Iterable[str]:
    for module, (nbytes, layers) in sorted(kept.items(), key=lambda item: -item[1][0]):
        if nbytes:
            yield module.replace("{layer}", fold_numbers(layers)).replace("{expert}", "*")


def files_of(checkpoint: Checkpoint) -> Files:
    weights = [file for file in checkpoint.files if file.kind in WEIGHT_KINDS and file.used]
    index = checkpoint.index
    return Files(
        weights=tuple(file.name for file in weights),
        weight_bytes=sum(file.size for file in weights),
        stray=tuple(file.name for file in checkpoint.files if file.kind in WEIGHT_KINDS and not file.used),
        total=len(checkpoint.files),
        index=index.name if index is not None else None,
        index_agrees=INDEX_CODES.isdisjoint(problem.code for problem in checkpoint.problems)
        if index is not None
        else None,
        tokenizer=tokenizer_of(checkpoint),
        chat_template=chat_template_of(checkpoint),
    )


def tokenizer_of(checkpoint: Checkpoint) -> str | None:
    names = {file.name for file in checkpoint.files}
    for needed in TOKENIZERS:
        if names.issuperset(needed):
            return " + ".join(needed)
    return next(
        (name for name, values in checkpoint.metadata.items() if values.get("tokenizer.ggml.model") is not None), None
    )


def chat_template_of(checkpoint: Checkpoint) -> str | None:
    """The file that holds it: its own, the tokenizer's or processor's settings, or a GGUF's metadata."""
    names = {file.name for file in checkpoint.files}
    for name in ("chat_template.jinja", "chat_template.json"):
        if name in names:
            return name
    for name in ("tokenizer_config.json", "processor_config.json"):
        settings: Any = checkpoint.json_files.get(name)
        if isinstance(settings, dict) and settings.get("chat_template"):
            return name
    return next((name for name, values in checkpoint.metadata.items() if values.get("tokenizer.chat_template")), None)


def shares_of(checkpoint: Checkpoint, model: Model | None) -> tuple[Share, ...]:
    """Where the bytes are, largest first."""
    if model is None:
        return by_dtype(checkpoint)
    parameters: dict[str, int] = {}
    for param in model.params:
        parameters[param.component] = parameters.get(param.component, 0) + param.elements
    return tuple(Share(name, nbytes, parameters[name]) for name, nbytes in model.bytes_by_component.items())


def by_dtype(checkpoint: Checkpoint) -> tuple[Share, ...]:
    """Bytes by dtype as stored, largest first."""
    found: dict[str, int] = {}
    for ref in checkpoint.tensors.values():
        found[ref.dtype] = found.get(ref.dtype, 0) + ref.nbytes
    return tuple(Share(name, nbytes, None) for name, nbytes in sorted(found.items(), key=lambda item: -item[1]))
