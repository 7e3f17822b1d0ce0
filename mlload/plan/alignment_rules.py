"""Rules on quantized layers: groups, packed words and scale blocks against what a rank holds."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from mlload.checkpoint.finding import Finding, Hint, Question
from mlload.plan.cutting import ceil_to
from mlload.plan.engine_layers import PlannedLayer
from mlload.plan.engine_view import EngineView
from mlload.plan.expert_rules import expert_findings
from mlload.plan.rule_findings import found, remainder
from mlload.plan.unknowns import Unknown
from mlload.profiles.methods import UNKNOWN, Method, method_for

Capability = tuple[int, int]

# Methods that refuse a group which straddles ranks, with the file that does; GPTQ's method takes it and is wrong.
REFUSES_GROUPS = {
    "AutoAWQLinearMethod": "auto_awq.py:819",
    "CompressedTensorsWNA16": "compressed_tensors_wNa16.py:171",
    "QuarkW4A16Int4": "quark_w4a16_int4.py:90",
}
# Methods that refuse inputs which are no whole number of small blocks.
REFUSES_SMALL_BLOCKS = ("ModelOptLinearMethod", "QuarkOCP_MX", "QuarkNVFP4")


def alignment_findings(view: EngineView, capability: Capability | None) -> Iterator[Finding]:
    """Layer by layer, in the order of the model."""
    for layer in view.layers:
        if layer.scheme is None:
            continue
        method = method_for(layer.shape, layer.scheme, view.method, capability, view.profile)
        if layer.shape.experts:
            yield from expert_findings(layer, method)
        else:
            yield from _groups(layer, method)
            yield from _words(layer, method)
            yield from _blocks(layer, method)
            yield from _small_blocks(layer, method)


def _names(method: Method) -> tuple[str, str]:
    return method.name, method.scheme


def _groups(layer: PlannedLayer, method: Method) -> Iterator[Finding]:
    """TP021. A group that covers the whole input is never cut."""
    shape, group = layer.shape, method.group_size
    if not method.weight.startswith("int") or method.weight.startswith("int8_") or group <= 0:
        return
    if shape.k % group == 0 or (group >= shape.in_full and shape.k == shape.in_full):
        return
    refuses = any(name in REFUSES_GROUPS for name in _names(method))
    if not refuses and shape.k == shape.in_full:
        return
    message = _per_rank(layer) + f"{remainder(shape.k, group)}: a quantization group of {group} would straddle ranks"
    if not refuses:
        message += "; the engine starts, and its scales then belong to other channels"
    yield found(
        "TP021",
        layer.where,
        message,
        {"k": shape.in_full, "tp": shape.tp, "k_per_rank": shape.k, "group_size": group},
        question="starts" if refuses else "right",
        layers=layer.layers,
        hints=_regroup_hints(layer, group),
    )


def _per_rank(layer: PlannedLayer) -> str:
    shape = layer.shape
    if shape.k == shape.in_full:
        return f"{shape.k} input channels, and "
    return f"{shape.in_full} / {shape.tp} = {shape.k} input channels per rank, and "


def _regroup_hints(layer: PlannedLayer, group: int) -> tuple[Hint, ...]:
    """What would rescue the size from the original weights: a finer group, or a wider layer."""
    shape = layer.shape
    hints: list[Hint] = []
    finer = next((size for size in (64, 32) if size < group and shape.k % size == 0), None)
    if finer is not None:
        hints.append(Hint(f"quantize with groups of {finer}: {remainder(shape.k, finer)}", needs="original weights"))
    if layer.component in ("mlp", "shared_expert"):
        padded = ceil_to(shape.in_full, group * shape.tp)
        hints.append(
            Hint(
                f"pad the intermediate size from {shape.in_full} to {padded} before quantizing",
                needs="original weights",
            )
        )
    return tuple(hints)


def _words(layer: PlannedLayer, method: Method) -> Iterator[Finding]:
    """TP022: outputs of AWQ and of zero points, inputs of the others, in whole 32-bit words."""
    shape = layer.shape
    if not method.weight.startswith("int") or method.weight.startswith("int8_") or layer.scheme is None:
        return
    values = 32 // gcd(method.bits, 32)
    if layer.scheme.format == "awq":
        total = sum(shape.parts)
        refuses = method.name == "AutoAWQLinearMethod" and total % values != 0
        for part in dict.fromkeys(shape.parts):
            if part % values:
                yield _word(layer, "output", part, values, "starts" if refuses else "right")
                return
    elif shape.k % values and shape.k != shape.in_full:
        yield _word(layer, "input", shape.k, values, "right")


def _word(layer: PlannedLayer, side: str, length: int, values: int, question: Question) -> Finding:
    return found(
        "TP022",
        layer.where,
        f"{length} {side} channels per rank, and {remainder(length, values)}: {values} of them share a stored word",
        {"per_rank": length, "pack_factor": values},
        question=question,
        layers=layer.layers,
    )


def _blocks(layer: PlannedLayer, method: Method) -> Iterator[Finding]:
    """TP023 (fp8_utils.py:1296): each part of a column-parallel or merged layer, the input of a row-parallel one."""
    shape, block = layer.shape, method.block
    if block is None or method.weight != "fp8_block":
        return
    bn, bk = block
    cut = shape.tp > 1
    loose = method.name == "Fp8LinearMethod" and layer.style != "row" and len(shape.parts) > 1
    loose = loose and any(part % bn for part in shape.parts)
    if cut and shape.k != shape.in_full and shape.k % bk:
        yield found(
            "TP023",
            layer.where,
            _per_rank(layer) + f"{remainder(shape.k, bk)}: a block of {bk} would straddle ranks",
            {"k": shape.in_full, "tp": shape.tp, "k_per_rank": shape.k, "block_k": bk},
            layers=layer.layers,
        )
    split = cut and layer.style == "column"
    if not split and (len(shape.parts) == 1 or layer.style == "row"):
        return
    # Of merged parts that are not divided the last one may end inside a block.
    checked = shape.parts if split else shape.parts[:-1]
    for part in dict.fromkeys(checked):
        if part % bn:
            message = f"{part} output channels of a fused part per rank, and {remainder(part, bn)}: "
            message += f"a block of {bn} would straddle {'ranks' if split else 'parts'}"
            if loose:
                message += "; the engine lets it pass, and scales then belong to other channels"
            yield found(
                "TP023",
                layer.where,
                message,
                {"n_per_rank": part, "tp": shape.tp, "block_n": bn},
                question="right" if loose else "starts",
                layers=layer.layers,
            )


def _small_blocks(layer: PlannedLayer, method: Method) -> Iterator[Finding]:
    """TP024: NVFP4 and MX scales; compressed-tensors floors the count of scales without a word."""
    shape = layer.shape
    block = 16 if method.weight == "nvfp4" else 32 if method.weight.startswith("mx") else 0
    if not block or shape.k % block == 0:
        return
    refuses = any(name in REFUSES_SMALL_BLOCKS for name in _names(method))
    yield found(
        "TP024",
        layer.where,
        _per_rank(layer) + f"{remainder(shape.k, block)}: {block} of them share a scale",
        {"k": shape.in_full, "tp": shape.tp, "k_per_rank": shape.k, "block": block},
        question="starts" if refuses else "right",
        layers=layer.layers,
    )


def unknown_methods(view: EngineView, capability: Capability | None) -> tuple[Unknown, ...]:
    """Layers whose method in the engine is not known here, as one open question."""
    if view.profile.engine != "vllm":
        return ()
    open_layers = [
        layer.label
        for layer in view.layers
        if layer.scheme is not None
        and UNKNOWN in method_for(layer.shape, layer.scheme, view.method, capability, view.profile)
    ]
    if not open_layers:
        return ()
    return (
        Unknown(
            f"what {view.profile.label} allocates for {', '.join(dict.fromkeys(open_layers))}",
            f"its method for {view.method} layers of this scheme is not in the profile",
            "start the engine with load_format dummy and read its memory report",
        ),
    )
