"""Rules on quantized experts: whether the slice of one that a rank holds can be quantized as stored."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.finding import Finding, Hint
from mlload.plan.engine_layers import PlannedLayer
from mlload.plan.rule_findings import found, remainder
from mlload.profiles.layers import EngineLayer
from mlload.profiles.methods import Method

WHOLE = (Hint("keep experts whole: each rank then holds some of them", "--enable-expert-parallel"),)


def expert_findings(layer: PlannedLayer, method: Method) -> Iterator[Finding]:
    """TP025 where the engine refuses, TP026 where it uses a finer grid."""
    if method.name == "MoeWNA16Method":
        yield from _halved(layer, method)
    elif method.name == "CompressedTensorsWNA16MoEMethod":
        yield from _whole_groups(layer, method)
    elif method.weight == "fp8_block":
        yield from _blocks(layer, method)
    elif method.weight.startswith("mxfp8"):
        yield from _whole(layer, 32, "MXFP8 experts")


def _per_rank(shape: EngineLayer) -> str:
    return f"an expert is {shape.intermediate} wide on a rank"


def _refused(layer: PlannedLayer, message: str, **numbers: int) -> Finding:
    shape = layer.shape
    numbers = {"intermediate_per_rank": shape.intermediate, "hidden_size": shape.k, "tp": shape.tp, **numbers}
    hints = WHOLE if shape.ep == 1 and shape.tp * shape.dp > 1 else ()
    return found("TP025", layer.where, message, numbers, layers=layer.layers, hints=hints)


def _halved(layer: PlannedLayer, method: Method) -> Iterator[Finding]:
    """moe_wna16.py:279: the group is halved until it divides, down to 32."""
    shape, group = layer.shape, method.group_size
    if group <= 0:
        return
    finer = group
    while finer >= 32 and (shape.intermediate % finer or shape.k % finer):
        finer //= 2
    if finer == group:
        return
    if finer < 32:
        worst = shape.intermediate if shape.intermediate % 32 else shape.k
        yield _refused(
            layer,
            f"{_per_rank(shape)}, and no group from {group} down to 32 divides it: {remainder(worst, 32)}",
            group_size=group,
        )
        return
    yield found(
        "TP026",
        layer.where,
        f"{_per_rank(shape)}, and {remainder(shape.intermediate, group)}: the engine uses groups of {finer} and "
        "repeats the scales",
        {"intermediate_per_rank": shape.intermediate, "group_size": group, "finer": finer, "tp": shape.tp},
        question="right",
        severity="warning",
        layers=layer.layers,
        hints=WHOLE,
    )


def _whole_groups(layer: PlannedLayer, method: Method) -> Iterator[Finding]:
    """compressed_tensors_moe_wna16.py:238."""
    shape, group = layer.shape, method.group_size
    if group > 0:
        for size, what in ((shape.intermediate, _per_rank(shape)), (shape.k, f"the hidden size is {shape.k}")):
            if size % group:
                yield _refused(
                    layer,
                    f"{what}, and {remainder(size, group)}: WNA16 experts take whole groups of {group} only",
                    group_size=group,
                )
    if method.zero_points:
        pack = 32 // method.bits
        outputs = len(shape.parts) * shape.intermediate
        for size, what in ((outputs, f"gate and up are {outputs} wide on a rank"), (shape.k, f"hidden size {shape.k}")):
            if size % pack:
                yield _refused(
                    layer, f"{what}, and {remainder(size, pack)}: {pack} zero points share a word", pack_factor=pack
                )


def _blocks(layer: PlannedLayer, method: Method) -> Iterator[Finding]:
    """fp8_utils.py:1350. The fp8 method refines the grid first (oracle/fp8.py:292), the others do not."""
    shape = layer.shape
    stored = layer.scheme.block if layer.scheme is not None else None
    if stored is None:
        return
    bn, bk = stored
    size = shape.intermediate
    bad = [block for block, asked in ((bn, True), (bk, shape.tp > 1)) if asked and size % block]
    if not bad:
        return
    if method.block is not None and method.block != stored:
        yield found(
            "TP026",
            layer.where,
            f"{_per_rank(shape)}, and {remainder(size, bad[0])}: the engine uses blocks of {method.block[0]} x "
            f"{method.block[1]} and repeats the scales",
            {"intermediate_per_rank": size, "block": bad[0], "finer": method.block[0], "tp": shape.tp},
            question="right",
            severity="info",
            layers=layer.layers,
        )
        return
    yield _refused(
        layer, f"{_per_rank(shape)}, and {remainder(size, bad[0])}: blocks of {bad[0]} cannot be cut", block=bad[0]
    )


def _whole(layer: PlannedLayer, block: int, what: str) -> Iterator[Finding]:
    shape = layer.shape
    for size, name in ((shape.intermediate, _per_rank(shape)), (shape.k, f"the hidden size is {shape.k}")):
        if size % block:
            yield _refused(layer, f"{name}, and {remainder(size, block)}: {what} share a scale by {block}", block=block)
