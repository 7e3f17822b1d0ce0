"""Findings about tensors whose shape is not what config.json leads to, with the fields at fault.

vLLM takes a rank's part of a tensor with `narrow`, so that channels beyond the config's are left behind without a
word; a tensor that is too small, and every dim that is not cut, is refused (model_executor/layers/linear.py,
parameter.py). Tables are compared with the vocabulary first (vocab_parallel_embedding.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from mlload.checkpoint.config import TEXT_KEYS
from mlload.checkpoint.finding import Finding, Hint
from mlload.plan.completeness import Misfit
from mlload.plan.fold import counted, fold_path
from mlload.plan.stored import axis_length
from mlload.quant.spec import Dim

# Sizes that tensors show, as configs call them; a field is at fault where it holds the expected number.
SIZES = (
    "intermediate_size",
    "moe_intermediate_size",
    "ffn_hidden_size",
    "shared_expert_intermediate_size",
    "hidden_size",
    "n_embd",
    "vocab_size",
    "head_dim",
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "q_lora_rank",
    "kv_lora_rank",
)
HEADS = ("num_attention_heads", "num_key_value_heads")


class Difference(NamedTuple):
    """Along one axis, in values; cut: ranks take their part of it."""

    axis: str
    expected: int
    actual: int
    cut: bool


def misshapen(misfits: Iterable[Misfit], config: Mapping[str, Any]) -> Iterator[Finding]:
    """Weights that differ along one axis by the same numbers together; scales only where no weight differs."""
    groups: dict[tuple[object, ...], list[tuple[Misfit, Difference]]] = {}
    odd: list[Misfit] = []
    known = list(misfits)
    weights = {misfit.spec.module for misfit in known if misfit.expected.tensor.role == "weight"}
    for misfit in known:
        if misfit.expected.tensor.role != "weight" and misfit.spec.module in weights:
            continue
        if _unpacked(misfit):
            continue
        differences = _differences(misfit)
        if len(differences) != 1 or misfit.expected.tensor.role != "weight":
            odd.append(misfit)
            continue
        (one,) = differences
        lost = _lost(misfit, one)
        groups.setdefault((one.expected, one.actual, lost, misfit.spec.mesh), []).append((misfit, one))
    for members in groups.values():
        yield _narrowed(members, config)
    for misfit in odd:
        yield _other(misfit)


def _unpacked(misfit: Misfit) -> bool:
    """A zero point that is stored value by value, which detection has told already."""
    spec, tensor = misfit.spec, misfit.expected.tensor
    packed = [at for at, dim in enumerate(tensor.dims) if dim.axis == "N"]
    return tensor.role == "zero" and len(packed) == 1 and misfit.actual[packed[0] : packed[0] + 1] == (spec.n,)


def _differences(misfit: Misfit) -> list[Difference]:
    spec, tensor = misfit.spec, misfit.expected.tensor
    if len(tensor.dims) != len(misfit.actual):
        return []
    found = []
    cut_axis = {"column": "N", "row": "K"}.get(spec.style, "")
    for dim, expected, actual in zip(tensor.dims, misfit.expected.shape, misfit.actual, strict=True):
        if expected == actual:
            continue
        axis = dim.axis
        length = axis_length(spec, axis) if axis else expected
        found.append(
            Difference(axis, length, _values(dim, actual) if axis else actual, bool(axis) and axis == cut_axis)
        )
    return found


def _values(dim: Dim, stored: int) -> int:
    return stored * dim.values // dim.items


def _lost(misfit: Misfit, one: Difference) -> bool:
    """Channels are dropped without a word."""
    return one.cut and one.actual > one.expected


def _narrowed(members: list[tuple[Misfit, Difference]], config: Mapping[str, Any]) -> Finding:
    misfit, one = members[0]
    lost = _lost(misfit, one)
    fields = _fields(config, one.expected)
    count = sum(len(member.places) for member, _ in members)
    where = _where(misfit) + (f" and {len(members) - 1} more" if len(members) > 1 else "")
    field = " x ".join(fields) if fields else "config.json"
    message = f"{field} leads to {one.expected:,}, the tensors have {one.actual:,}"
    if lost:
        message += f": {one.actual - one.expected:,} channels are left behind in {count:,} tensors, without an error"
    hints = [Hint(f"set {field} to what the tensors have" + (f": {one.actual}" if len(fields) == 1 else ""))]
    if lost and "intermediate" in field:
        hints.append(
            Hint(
                "to reach a tensor-parallel size, pad the weights with zeros up to a multiple before quantizing; "
                "cutting channels off changes the model",
                needs="original weights",
            )
        )
    return Finding(
        "TN003",
        "error",
        "right" if lost else "starts",
        counted(where, count),
        message,
        {
            "fields": fields,
            "expected": one.expected,
            "actual": one.actual,
            "lost": max(one.actual - one.expected, 0) if lost else 0,
            "count": count,
            "modules": sorted({member.spec.module.rpartition(".")[2] for member, _ in members}),
        },
        tuple(hints),
    )


def _other(misfit: Misfit) -> Finding:
    shown = list(misfit.expected.shape)
    return Finding(
        "TN003",
        "error",
        "starts",
        counted(_where(misfit), len(misfit.places)),
        f"the files hold {list(misfit.actual)}, config.json says {shown}",
        {"expected": shown, "actual": list(misfit.actual), "count": len(misfit.places)},
    )


def _where(misfit: Misfit) -> str:
    layers = [layer for layer, _ in misfit.places if layer >= 0]
    experts = [expert for _, expert in misfit.places if expert is not None]
    return fold_path(misfit.spec.module, layers or None, experts or None) + misfit.expected.suffix


def _fields(config: Mapping[str, Any], expected: int) -> list[str]:
    """The config's fields that hold the number, or whose product it is."""
    for scope in (config, *(config[key] for key in TEXT_KEYS if isinstance(config.get(key), dict))):
        found = [key for key in SIZES if scope.get(key) == expected]
        if found:
            return found[:1]
        dim = scope.get("head_dim")
        for key in HEADS:
            heads = scope.get(key)
            if isinstance(heads, int) and isinstance(dim, int) and heads * dim == expected:
                return [key, "head_dim"]
    return []
