"""Rules about names: ignore lists and targets against the tensors, and the parts of fused layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlload.checkpoint.finding import Finding, Hint
from mlload.plan.bound import BoundParam
from mlload.plan.engine_layers import PlannedLayer
from mlload.plan.fold import fold_numbers, fold_path
from mlload.quant.spec import Scheme
from mlload.validators.context import Context
from mlload.validators.coverage import (
    BY_CONFIG,
    Disagreement,
    declared_schemes,
    module_at,
    packed,
    stored_plain,
    stored_quantized,
)
from mlload.validators.rules import rule

RENAME = Hint("blocks kept from an fp8 checkpoint have their scales as weight_scale_inv: rename weight_scale to that")


@rule("NM001", "plain weight that nothing excludes")
def plain_weights(context: Context) -> Iterator[Finding]:
    """A linear is stored unquantized, but neither an ignore list nor the targets leave it out, so the engine builds a
    quantized layer for it. Where the quantized weight has another name or shape, vLLM stops while loading. Where it
    has the same (fp8, int8), the plain weight is cast, no scale is found, and the numbers are wrong without a word.
    Typical causes: entries that end in a quantizer's wrapper name (".linear"), a prefix that was changed after
    quantizing, layers that a tool skipped and did not list."""
    declared = declared_schemes(context)
    if declared is None:
        return
    told = {(part.spec.module, part.spec.layers) for layer in _partly_plain(context) for part in layer.params}
    found = (
        one for one in stored_plain(context, declared) if (one.param.spec.module, one.param.spec.layers) not in told
    )
    for (towers, question), members in _by_effect(found).items():
        modules = _places(members)
        where = context.model.quant.declared_in if context.model.quant else "config.json"
        count = sum(len(one.layers) for one in members)
        scheme = members[0].scheme
        expects = "packed tensors" if question == "starts" else "scales"
        yield Finding(
            "NM001",
            "warning" if towers else "error",
            "starts" if question == "starts" else "right",
            modules[0] + _more(modules),
            f"{count} linear{'s are' if count > 1 else ' is'} stored plain and {where or 'the config'} does not leave "
            f"{'them' if count > 1 else 'it'} out: the engine expects {expects} "
            f"({scheme.format if scheme else 'quantized'}, {scheme.bits if scheme else 0} bits)",
            {"modules": modules, "count": count},
            (Hint("name them in the ignore list: " + ", ".join(_named(members))),),
        )


@rule("NM002", "list that leaves quantized weights out")
def excluded_weights(context: Context) -> Iterator[Finding]:
    """The config leaves a module unquantized (by its ignore list, its targets, or because the method does not take
    the output head), but its weight is stored quantized. The engine builds a plain layer and stops at the first packed
    tensor or scale, which that layer does not have. AWQ's entries match anywhere in a name, so a short entry can hit
    more than was meant."""
    declared = declared_schemes(context)
    if declared is None:
        return
    members = list(stored_quantized(context, declared))
    if members:
        modules = _places(members)
        count = sum(len(one.layers) for one in members)
        yield Finding(
            "NM002",
            "error",
            "starts",
            modules[0] + _more(modules),
            f"{count} linear{'s are' if count > 1 else ' is'} stored quantized, and the config leaves "
            f"{'them' if count > 1 else 'it'} unquantized: the engine has no place for the packed tensors",
            {"modules": modules, "count": count},
            (
                *((RENAME,) if any(_kept_blocks(context, one.param) for one in members) else ()),
                Hint("take them out of the ignore list, or add them to the targets"),
            ),
        )


@rule("NM003", "part of a fused layer left unquantized")
def partly_quantized(context: Context) -> Iterator[Finding]:
    """The engine fuses q, k and v, or gate and up, into one layer with one method. Some of the parts are quantized and
    some are not. vLLM stops: "all shards of fused layers" must have the same precision. Leave out all parts or none."""
    declared = declared_schemes(context)
    for layer in _partly_plain(context):
        plain = [part for part in layer.params if part.scheme is None]
        rest = [part for part in layer.params if part.scheme is not None]
        scheme = next(part.scheme for part in rest if part.scheme is not None)
        listed = declared is not None and any(declared(_first(part)) is None for part in plain)
        yield Finding(
            "NM003",
            "error",
            "starts" if listed or packed(scheme) else "right",
            layer.where,
            f"{_names(plain)} stored plain, {_names(rest)} with {scheme.bits} bits: {layer.label} is one layer, of one "
            "precision",
            {"plain": [part.spec.module for part in plain], "bits": scheme.bits},
            (Hint("quantize all parts or none of them", needs="original weights"),),
        )


@rule("NM004", "fused parts quantized differently")
def differently_quantized(context: Context) -> Iterator[Finding]:
    """The parts of one fused layer (q, k and v; gate and up; all experts of a layer) are quantized in different ways:
    other bits, other group sizes, other formats. The engine allocates one tensor for all of them, by the config, and
    stops at the part whose shape does not fit. A quantizer must give all parts of a fused layer the same scheme."""
    for layer in _fused(context):
        schemes = {scheme for part in layer.params if (scheme := part.scheme) is not None}
        if not layer.mixed or len(schemes) < 2:
            continue
        what, values = _difference(sorted(schemes, key=repr))
        told = ", ".join(
            f"{_names([part for part in layer.params if part.scheme and getattr(part.scheme, what) == value])} {value}"
            for value in values
        )
        yield Finding(
            "NM004",
            "error",
            "right" if what == "activation" else "starts",
            layer.where,
            f"parts of {layer.label} differ in {what.replace('_', ' ')}: {told}",
            {"what": what, "values": values},
            (Hint("quantize all parts of a fused layer alike", needs="original weights"),),
        )


def _kept_blocks(context: Context, param: BoundParam) -> bool:
    """Layers with fp8 blocks that a quantizer kept from the original, under its own name for scales."""
    scheme = param.scheme
    quant = context.model.quant
    blocks = scheme is not None and scheme.bits == 8 and scheme.block is not None
    return (
        blocks
        and quant is not None
        and quant.method != "fp8"
        and any(t.suffix == ".weight_scale" for t in param.stored)
    )


def _by_effect(found: Iterator[Disagreement]) -> dict[tuple[bool, str], list[Disagreement]]:
    """Grouped by (in a tower, question)."""
    groups: dict[tuple[bool, str], list[Disagreement]] = {}
    for one in found:
        question = "starts" if one.scheme is None or packed(one.scheme) else "right"
        groups.setdefault((one.param.spec.mesh == "tower", question), []).append(one)
    return groups


def _places(members: Sequence[Disagreement]) -> list[str]:
    return [
        fold_path(one.param.spec.module, [n for n in one.layers if n >= 0] or None, one.param.experts)
        for one in members
    ]


def _named(members: Sequence[Disagreement]) -> list[str]:
    names = [module_at(one.param, layer) for one in members for layer in one.layers]
    return names if len(names) <= 3 else [*names[:2], f"... ({len(names)})"]


def _more(modules: Sequence[str]) -> str:
    return f" and {len(modules) - 1} more" if len(modules) > 1 else ""


def _fused(context: Context) -> Iterator[PlannedLayer]:
    """Engine layers made of several families that the quantization config is asked about."""
    view = context.plan.view
    if context.model.config_only or not view.sees_quantization or view.method not in BY_CONFIG:
        return
    for layer in context.plan.layers():
        if len(layer.params) > 1 and layer.quantized:
            yield layer


def _partly_plain(context: Context) -> Iterator[PlannedLayer]:
    """Fused layers of which some parts are quantized and some are not."""
    for layer in _fused(context):
        if layer.mixed and any(part.scheme is None for part in layer.params):
            yield layer


def _first(param: BoundParam) -> str:
    return module_at(param, -1 if param.spec.layers is None else param.spec.layers[0])


def _names(parts: Sequence[BoundParam]) -> str:
    """The parts' own names; for experts that differ from others of their layer, which ones they are."""
    experts = parts[0].expert_ids
    names = ", ".join(dict.fromkeys(part.spec.module.rpartition(".")[2] for part in parts))
    return names if experts is None else f"{names} of experts {fold_numbers(experts)}"


def _difference(schemes: Sequence[Scheme]) -> tuple[str, list[object]]:
    """The first fact in which schemes differ, and its values."""
    for what in ("bits", "group_size", "block", "format", "layout", "strategy", "symmetric"):
        values = list(dict.fromkeys(getattr(scheme, what) for scheme in schemes))
        if len(values) > 1:
            return what, values
    return "activation", list(dict.fromkeys(scheme.activation for scheme in schemes))
