"""What a checkpoint's quantization is: what its config declares against what its tensors show.

The tensors win. Every disagreement is a finding; the declaration stands where there are no tensors to ask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import Finding
from mlload.checkpoint.tensor import TensorRef
from mlload.quant.formats import compressed_tensors, dead_entries, disagreements, kv, registry
from mlload.quant.formats.census import FLOAT_DTYPES, Census, module_of, shown
from mlload.quant.formats.declaration import Declaration, declarations
from mlload.quant.formats.disagreements import Seen
from mlload.quant.formats.fields import strings
from mlload.quant.spec import KVScheme, QuantSpec, Scheme

Resolver = Callable[[str], Scheme | None]

# Asked in this order where the declared format does not know the tensors.
ORDER = (
    "awq",
    "gptq",
    "mxfp4",
    "bitsandbytes",
    "mlx",
    "modelopt",
    "fp8",
    "compressed_tensors",
    "quark",
    "torchao",
)

# What a method is called that only tensors show.
METHOD_OF = {"compressed_tensors": "compressed-tensors", "auto_round": "auto-round"}


# Layouts that differ in what activations need only.
SAME_WEIGHTS = frozenset({"NVFP4", "W4A16_NVFP4"})


def detect(checkpoint: Checkpoint) -> tuple[QuantSpec | None, tuple[Finding, ...]]:
    """The quantization of a checkpoint (None: there is none) and what is odd about it."""
    found = list(declarations(checkpoint.config, checkpoint.json_files))
    declared = next(iter(found), None)
    if checkpoint.format == "gguf":
        return _gguf(checkpoint, declared)
    findings: list[Finding] = []
    resolver = _resolver(declared, findings)
    if not checkpoint.tensors:
        if declared is None:
            return None, ()
        findings += disagreements.of_declaration(declared, found[1:])
        return _declared_only(declared, resolver), tuple(findings)

    census = Census(checkpoint.tensors)
    content = _Content(census, declared, resolver)
    seen = content.look()
    if not seen:
        if declared is not None and census.packed():
            findings += disagreements.unreadable(declared, census.packed())
            return _declared_only(declared, resolver), tuple(findings)
        if declared is not None:
            findings += disagreements.leftover(declared, census)
        return None, tuple(findings)
    if declared is None:
        findings += disagreements.undeclared(seen)
    else:
        findings += disagreements.of_declaration(declared, found[1:])
        findings += disagreements.of_content(declared, seen)
        findings += dead_entries.find(declared, census)
    scales = kv.stored_scales(checkpoint.tensors) if _has_kv_scales(census) else {}
    config = declared.config if declared else {}
    kv_scheme = kv.declared(config) or _kv_from(scales)
    findings += disagreements.of_kv(kv.declared(config), scales)
    spec = QuantSpec(
        method=_method(declared, seen),
        scheme_for=content.scheme_for,
        schemes=_by_count(seen),
        ignore=_ignored(config),
        kv=kv_scheme,
        config=config,
        declared_in=declared.where if declared else "",
        evidence=_evidence(declared, seen),
    )
    return spec, tuple(findings)


def _gguf(checkpoint: Checkpoint, declared: Declaration | None) -> tuple[QuantSpec | None, tuple[Finding, ...]]:
    from mlload.quant.formats import gguf

    findings = tuple(disagreements.foreign(declared)) if declared is not None else ()
    tensors = checkpoint.tensors
    counts: dict[Scheme, int] = {}
    memo: dict[str, Scheme | None] = {}
    for ref in tensors.values():
        if ref.dtype not in memo:
            memo[ref.dtype] = gguf.detect({}, {"weight": ref})
        scheme = memo[ref.dtype]
        if scheme is not None:
            counts[scheme] = counts.get(scheme, 0) + 1
    if not counts:
        return None, findings

    def scheme_for(module: str) -> Scheme | None:
        ref = tensors.get(f"{module}.weight") or tensors.get(module)
        return memo.get(ref.dtype) if ref is not None else None

    schemes = tuple(sorted(counts, key=lambda scheme: -counts[scheme]))
    types = ", ".join(f"{counts[scheme]} x {scheme.layout}" for scheme in schemes)
    return QuantSpec("gguf", scheme_for, schemes, evidence=(f"tensor types: {types}",)), findings


def _resolver(declared: Declaration | None, findings: list[Finding]) -> Resolver:
    if declared is None:
        return lambda module: None
    if not registry.known(declared.method):
        findings.append(disagreements.unknown(declared))
        return lambda module: None
    return registry.get(declared.method).declare(declared.config)


def _declared_only(declared: Declaration, resolver: Resolver) -> QuantSpec | None:
    if not registry.known(declared.method):
        return None
    probe = resolver("model.layers.0.mlp.down_proj") or resolver("model.layers.0.mlp.experts.0.down_proj")
    return QuantSpec(
        method=declared.method,
        scheme_for=resolver,
        schemes=_declared_schemes(declared, probe),
        ignore=_ignored(declared.config),
        kv=kv.declared(declared.config),
        config=declared.config,
        declared_in=declared.where,
        evidence=(f"{declared.where} declares {declared.method}; no tensors to compare with are known",),
    )


def _declared_schemes(declared: Declaration, probe: Scheme | None) -> tuple[Scheme, ...]:
    if registry.METHODS.get(declared.method) == "compressed_tensors":
        from mlload.quant.formats.compressed_tensors_config import groups

        return tuple(dict.fromkeys(group.scheme for group in groups(declared.config)))
    return (probe,) if probe is not None else ()


class _Content:
    """Schemes as the tensors show them, one look for each kind of linear."""

    def __init__(self, census: Census, declared: Declaration | None, resolver: Resolver) -> None:
        self.census = census
        self.config: Mapping[str, Any] = declared.config if declared else {}
        self.resolver = resolver
        first = registry.METHODS.get(declared.method, "") if declared else ""
        names = (first, *ORDER) if first and first not in ("gguf",) else ORDER
        self.formats = [registry.get(name) for name in dict.fromkeys(names)]
        self.memo: dict[tuple[Any, ...], Scheme | None] = {}
        self.complete = lru_cache(maxsize=4096)(_completed)

    def classify(self, tensors: Mapping[str, TensorRef]) -> Scheme | None:
        """The scheme of one linear's tensors; None for a plain one."""
        weight = tensors.get("weight")
        if weight is not None and weight.dtype in FLOAT_DTYPES and "weight.absmax" not in tensors:
            return None
        key = tuple((suffix, ref.dtype, ref.shape) for suffix, ref in tensors.items())
        if key not in self.memo:
            found = (fmt.detect(self.config, tensors) for fmt in self.formats)
            scheme = next((scheme for scheme in found if scheme is not None), None)
            if scheme is not None and scheme.format == "compressed_tensors":
                scheme = compressed_tensors.of_known_width(self.config, scheme, tensors, self.census.widths)
            self.memo[key] = scheme
        return self.memo[key]

    def scheme_for(self, module: str) -> Scheme | None:
        """A module's scheme: by its tensors, by the declaration where it has none or only some of them."""
        tensors = self.census.linear(module)
        if not tensors or set(tensors) <= {"bias", "_bias"}:
            return self.resolver(module)
        scheme = self.classify(tensors)
        if scheme is not None:
            declared = self.resolver(module)
            if scheme.format == "fp8" and declared is not None and not any("scale" in suffix for suffix in tensors):
                return declared  # no scale is there to tell its form
            return self.complete(scheme, declared)
        weight = tensors.get("weight")
        return None if weight is not None and weight.dtype in FLOAT_DTYPES else self.resolver(module)

    def look(self) -> list[Seen]:
        """One entry for each kind of quantized linear."""
        entries: list[Seen] = []
        looked: set[str] = set()
        for suffix, kind, names in self.census.anchors():
            module = module_of(names[0], suffix)
            if module in looked:
                continue
            looked.add(module)
            tensors = self.census.linear(module)
            scheme = self.classify(tensors)
            if scheme is not None:
                declared = self.resolver(module)
                entries.append(Seen(suffix, kind, names, module, tensors, _completed(scheme, declared), declared))
        return entries


def _completed(scheme: Scheme, declared: Scheme | None) -> Scheme:
    """What tensors show, with what they cannot show from the declaration of that very module."""
    if declared is None or declared.format != scheme.format:
        return scheme
    if declared.layout != scheme.layout and not {declared.layout, scheme.layout} <= SAME_WEIGHTS:
        return scheme
    in_tensors = scheme.format == "compressed_tensors"
    own = (scheme.format, scheme.layout) == ("quark", "int8")
    if declared.layout == "pack-quantized" and _per_word(declared) == _per_word(scheme):
        # 8 bits in groups of 64 have the shapes of 4 in groups of 128: of two groups, this module's is meant.
        scheme = replace(scheme, bits=declared.bits, group_size=declared.group_size)
    return replace(
        declared,
        bits=scheme.bits,
        kind=scheme.kind,
        strategy=scheme.strategy,
        group_size=scheme.group_size,
        block=scheme.block,
        # Declared zero points that are not stored are missing; stored ones that are not declared are there, except
        # where symmetric weights have them too.
        symmetric=declared.symmetric and (scheme.symmetric or scheme.format == "gptq" or own),
        act_order=scheme.act_order if in_tensors else declared.act_order,
        activation=scheme.activation if scheme.activation == "static" else declared.activation,
        activation_bits=scheme.activation_bits or declared.activation_bits,
        options=declared.options or scheme.options,
    )


def _per_word(scheme: Scheme) -> int:
    """Bits of a whole group: what the shapes of packed integers show. Below 0 for rows, where widths tell."""
    return scheme.bits * (scheme.group_size or -1)


def _by_count(seen: list[Seen]) -> tuple[Scheme, ...]:
    counts: dict[Scheme, int] = {}
    for entry in seen:
        counts[entry.scheme] = counts.get(entry.scheme, 0) + len(entry.names)
    return tuple(sorted(counts, key=lambda scheme: -counts[scheme]))


def _method(declared: Declaration | None, seen: list[Seen]) -> str:
    name = _by_count(seen)[0].format
    if declared is not None and registry.METHODS.get(declared.method) in (name, "auto_round", "quark", "modelopt"):
        return declared.method
    return METHOD_OF.get(name, name)


def _ignored(config: Mapping[str, Any]) -> tuple[str, ...]:
    return strings(config, *dead_entries.IGNORE_KEYS)


def _has_kv_scales(census: Census) -> bool:
    return any(kind.suffix in kv.LAST_PARTS for kind in census.kinds)


def _kv_from(scales: Mapping[str, tuple[int, ...]]) -> KVScheme | None:
    if not scales:
        return None
    per_head = any(len(shape) == 3 or (len(shape) == 1 and shape[0] > 1) for shape in scales.values())
    return KVScheme(8, "float", "attn_head" if per_head else "tensor", "tensors")


def _evidence(declared: Declaration | None, seen: list[Seen]) -> tuple[str, ...]:
    lines = [f"{declared.where} declares {declared.method}"] if declared else ["no config declares a quantization"]
    for entry in seen[:4]:
        parts = ", ".join(f"{suffix} {ref.dtype} {list(ref.shape)}" for suffix, ref in entry.tensors.items())
        lines.append(f"{shown(entry.module)}: {parts}")
    return tuple(lines)
