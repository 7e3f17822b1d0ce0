"""Findings about tensors that the architecture expects and the files do not hold.

vLLM's loader compares what was loaded with what the model has, but only for unquantized models, and even there it
leaves out every module that has a quantization method, an unquantized linear, table or expert among them
(model_executor/model_loader/default_loader.py, `track_weights_loading`). So a missing norm stops the start; a
missing linear is served with whatever was in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from mlload.checkpoint.finding import Finding, Hint, Question
from mlload.checkpoint.tensor import TensorRef
from mlload.plan.completeness import Expected, Gap
from mlload.plan.fold import counted, fold_numbers, fold_path
from mlload.plan.params import ParamSpec

# Engine classes that have a method of their own for their weights, whatever the quantization.
WITH_METHOD = ("VocabParallelEmbedding", "ParallelLMHead", "RoutedExperts", "GptOssRoutedExperts", "GateLinear")
AGAIN = Hint("download the files that hold them again, or save the model again", needs="original weights")
MANY = 3  # families that are named one by one


def checked(spec: ParamSpec) -> bool:
    """Whether vLLM, for an unquantized model, stops when a tensor of this family was not loaded."""
    return not (spec.kind in WITH_METHOD or spec.kind.endswith(("ParallelLinear", "ReplicatedLinear")))


def missing_layers(
    gaps: Sequence[Gap], found: Mapping[str, Collection[int]], quantized: bool
) -> tuple[list[Finding], list[Gap]]:
    """Layers of which no tensor is there, and the gaps that are left."""
    lost: dict[str, set[int]] = {}
    tensors: dict[str, int] = {}
    rest: list[Gap] = []
    for gap in gaps:
        head = gap.spec.module.partition("{layer}")[0]
        if gap.layer < 0 or not found.get(head) or gap.layer in found[head]:
            rest.append(gap)
            continue
        lost.setdefault(head, set()).add(gap.layer)
        tensors[head] = tensors.get(head, 0) + len(gap.absent)
    findings = []
    for head, layers in lost.items():
        there = len(found[head])
        cut = min(layers) == there  # only the last ones: perhaps on purpose
        hints = (AGAIN, *((Hint(f'if they were cut on purpose, set "num_hidden_layers": {there}'),) if cut else ()))
        findings.append(
            Finding(
                "TN004",
                "error",
                "right" if quantized else "starts",
                head + fold_numbers(layers),
                f"{len(layers)} of {there + len(layers)} layers are not in the files: {tensors[head]:,} tensors",
                {"layers": sorted(layers), "count": tensors[head], "found": there},
                hints,
            )
        )
    return findings, rest


def half_stored(
    gaps: Sequence[Gap], left: Sequence[TensorRef], quantized: bool
) -> tuple[list[Finding], list[Gap], list[TensorRef]]:
    """Linears of whose tensors some are there and some are not, under their own or under other names."""
    by_path = {gap.path: gap for gap in gaps}
    extra: dict[str, list[TensorRef]] = {}
    rest_left = []
    for ref in left:
        path = ref.name.rpartition(".")[0]
        if path in by_path and not ref.name.endswith("bias"):
            extra.setdefault(path, []).append(ref)
        else:
            rest_left.append(ref)
    if not extra:
        return [], list(gaps), list(left)
    groups: dict[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], bool], list[Gap]] = {}
    for path, refs in extra.items():
        gap = by_path[path]
        absent = tuple(expected.suffix for expected in gap.absent)
        others = tuple(ref.name[len(path) :] for ref in refs)
        renamed = len(refs) == len(gap.absent) == 1 and bool(gap.present) and _alike(refs[0], gap.absent[0])
        groups.setdefault((absent, gap.present, others, renamed), []).append(gap)
    findings = [_half(members, quantized, *key) for key, members in groups.items()]
    return findings, [gap for gap in gaps if gap.path not in extra], rest_left


def _alike(ref: TensorRef, expected: Expected) -> bool:
    return ref.shape == expected.shape or all(size == 1 for size in (*ref.shape, *expected.shape))


def _half(
    gaps: list[Gap],
    quantized: bool,
    absent: tuple[str, ...],
    present: tuple[str, ...],
    others: tuple[str, ...],
    renamed: bool,
) -> Finding:
    where = _where(gaps)
    numbers = {"missing": _bare(absent), "stored": _bare((*present, *others)), "modules": len(gaps)}
    if renamed:
        return Finding(
            "TN006",
            "error",
            "starts",
            where,
            f"{_list(absent)} is expected, and the files have {_list(others)} of the same shape: a renamed tensor",
            numbers,
            (Hint(f"rename {_list(others)} to {_list(absent)}"),),
        )
    weight = any("scale" not in name and "zero" not in name for name in (*present, *others))
    scale = any("scale" in name for name in (*present, *others))
    what = "scales without a weight" if scale and not weight else "a weight without its scales" if weight else "a part"
    return Finding(
        "QT009",
        "error",
        "right" if quantized else "starts",
        where,
        f"{what}: the files have {_list((*present, *others))} and not the rest of a quantized linear"
        + (f" ({_list(absent)})" if present else ""),
        numbers,
        (AGAIN,),
    )


def missing(gaps: Iterable[Gap], quantized: bool) -> Iterator[Finding]:
    """What is missing beyond whole layers, families with the same places together."""
    partly: dict[tuple[object, ...], list[Gap]] = {}
    halves: dict[tuple[object, ...], list[Gap]] = {}
    for gap in gaps:
        absent = tuple(expected.suffix for expected in gap.absent)
        if gap.present and gap.scheme is not None and any(e.tensor.role != "bias" for e in gap.absent):
            halves.setdefault((absent, gap.present, bool(gap.spec.experts), sentinel(gap)), []).append(gap)
        else:
            partly.setdefault((gap.spec.module, gap.absent), []).append(gap)
    yield from map(_incomplete, halves.values())
    alike: dict[tuple[Question, tuple[object, ...]], list[list[Gap]]] = {}
    for members in partly.values():
        question: Question = "right" if quantized or not checked(members[0].spec) else "starts"
        places = tuple((gap.layer, gap.expert) for gap in members)
        alike.setdefault((question, places), []).append(members)
    for (question, _), families in alike.items():
        if len(families) > MANY:
            yield _several(families, question)
            continue
        for members in families:
            yield _absent(members, question)


def _absent(gaps: list[Gap], question: Question) -> Finding:
    suffixes = [expected.suffix for expected in gaps[0].absent]
    count = len(gaps) * len(suffixes)
    where = _where(gaps) + (suffixes[0] if len(suffixes) == 1 else "")
    what = "tensor that the architecture expects is" if count == 1 else "tensors that the architecture expects are"
    named = "" if len(suffixes) == 1 else f": {_list(suffixes)}"
    return Finding(
        "TN001",
        "error",
        question,
        counted(where, count),
        f"{count:,} {what} not in the files{named}{_silence(question)}",
        {"count": count},
        (AGAIN,),
    )


def _several(families: list[list[Gap]], question: Question) -> Finding:
    count = sum(len(gap.absent) for members in families for gap in members)
    return Finding(
        "TN001",
        "error",
        question,
        f"{_where(families[0])} and {len(families) - 1} more modules beside it ({count:,} tensors)",
        f"{count:,} tensors of {len(families)} modules that the architecture expects are not in the files"
        + _silence(question),
        {"count": count, "modules": [_where(members) for members in families]},
        (AGAIN,),
    )


def _incomplete(gaps: list[Gap]) -> Finding:
    """A quantized linear that lacks one of its tensors."""
    absent, first = [expected.suffix for expected in gaps[0].absent], gaps[0]
    experts = sorted({gap.expert for gap in gaps if gap.expert is not None})
    layers = len({gap.layer for gap in gaps})
    of = f" of {first.spec.experts}" if first.spec.experts else ""
    which = f"expert{'s' if len(experts) > 1 else ''} {fold_numbers(experts)}{of}"
    lack = "lack" if len(experts) > 1 else "lacks"
    some = f"in {layers} layer{'s' if layers > 1 else ''} {which} {lack}" if experts else ""
    if sentinel(first):
        effect = "vLLM finds the mark that it left in the scale's place, and stops"
    elif any(expected.tensor.role == "input_scale" for expected in first.absent):
        effect = "vLLM leaves the slot as it was made, and scales these activations by it"
    else:
        effect = "vLLM does not check, and serves what was in memory"
    return Finding(
        "QT009",
        "error",
        "starts" if sentinel(first) else "right",
        _where(gaps),
        f"{some or 'the files lack'} {_list(absent)}, and have {_list(first.present)}: {effect}",
        {"missing": _bare(absent), "stored": _bare(first.present), "modules": len(gaps), "experts": experts},
        (AGAIN,),
    )


def sentinel(gap: Gap) -> bool:
    """A dense NVFP4 layer of ModelOpt: its scales are made as NaN, and one that was never loaded stops the start
    (layers/quantization/modelopt.py, `process`)."""
    scheme = gap.scheme
    nvfp4 = scheme is not None and scheme.format == "modelopt" and "NVFP4" in scheme.layout
    return nvfp4 and gap.spec.experts is None and any(expected.suffix == ".weight_scale" for expected in gap.absent)


def _silence(question: Question) -> str:
    return "; vLLM does not check these, and serves what was in memory" if question == "right" else ""


def _where(gaps: Sequence[Gap]) -> str:
    """The first family, with the layers and experts that are concerned, and how many more there are."""
    first = gaps[0].spec
    own = [gap for gap in gaps if gap.spec.module == first.module]
    layers = [gap.layer for gap in own if gap.layer >= 0]
    experts = [gap.expert for gap in own if gap.expert is not None]
    more = len({gap.spec.module for gap in gaps}) - 1
    return fold_path(first.module, layers or None, experts or None) + (f" and {more} more" if more else "")


def _bare(suffixes: Iterable[str]) -> list[str]:
    return [suffix.lstrip(".") for suffix in suffixes]


def _list(suffixes: Iterable[str]) -> str:
    return ", ".join(_bare(suffixes))
