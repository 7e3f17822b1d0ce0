"""AWQ's scales folded into what produces a linear's input, by the wiring that the architecture declares.

Every fold is proven: the layer must still compute what it computed. Where it does not (a norm that other modules read,
a nonlinear step between), the fold is taken back and the linears keep their scale of 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mlload.engine.calibrate_inputs import Input
from mlload.plan.cutting import parts_of
from mlload.quant.algorithms import awq
from mlload.quantize.targets import Target
from mlload.quantize.weights import TORCH, scale_dtype

if TYPE_CHECKING:
    from mlload.engine.calibrate import Layer

CLOSE = 2e-4  # relative difference of outputs that rounding of float32 explains


def fold_scales(layer: Layer, inputs: list[Input], sample: Tensor, scales: dict[str, Any]) -> list[str]:
    """Scales the layer's modules in place; gives a note for each input whose producer could not take its scale."""
    notes: list[str] = []
    before = next(layer.runner.run(layer.number, sample))
    for seen in inputs:
        members = [module for module in seen.modules if module in layer.targets]
        if not members:
            continue
        target = layer.targets[members[0]]
        producer = _producer(layer, target)
        if producer is None or any(layer.targets[m].scheme != target.scheme for m in members):
            continue
        rows, shared = _rows(layer, producer, target)
        if rows is None:
            continue
        scale = _searched(members, seen, target, shared)
        if scale is None or _folded(layer, producer, rows, shared, scale, seen, sample, before, scales):
            continue
        notes.append(f"{target.path}: its scale cannot be folded into {target.param.spec.wiring}; left at 1")
    return notes


def _producer(layer: Layer, target: Target) -> nn.Module | None:
    wiring = target.param.spec.wiring
    if wiring is None:
        return None
    return layer.by_disk.get(wiring.replace("{layer}", _layer_of(target)))


def _layer_of(target: Target) -> str:
    head = target.param.spec.module.split("{layer}", 1)[0]
    return target.path[len(head) :].split(".", 1)[0]


def _rows(layer: Layer, producer: Any, target: Target) -> tuple[slice | None, Tensor | None]:
    """The producer's outputs that are this input, and, where heads are repeated, which channel comes from which."""
    n = producer.weight.shape[0]
    made = layer.targets.get(producer)
    rows = slice(0, n)
    if made is not None:
        parts, at = parts_of(made.param.spec), 0
        if len(parts) > 1:
            if made.param.spec.groups != 1:
                return None, None
            for part in parts:
                if part.role in ("v", "up"):
                    rows = slice(at, at + part.length)
                at += part.length
        part = next((p for p in parts if p.role in ("v", "up")), parts[0])
        length = rows.stop - rows.start
        if length != target.k:
            if part.role != "v" or target.k % length:
                return None, None
            # Channel (head, d) of the input comes from row (head // repeats, d).
            repeats, width = target.k // length, part.unit
            channel = torch.arange(target.k)
            return rows, (channel // width // repeats) * width + channel % width
    elif n != target.k:
        return None, None
    return rows, None


def _searched(members: list[Any], seen: Input, target: Target, shared: Tensor | None) -> Tensor | None:
    scheme = target.scheme
    weight = torch.cat([module.weight for module in members])
    scale, loss, without = awq.search_scale(
        weight,
        seen.moment,
        seen.magnitude,
        scheme.bits,
        -1 if scheme.group_size is None else scheme.group_size,
        symmetric=scheme.symmetric,
        dtype=TORCH[scale_dtype(scheme, target.dtype)],
        shared=shared,
    )
    return scale if loss < without else None


def _folded(
    layer: Layer,
    producer: Any,
    rows: slice,
    shared: Tensor | None,
    scale: Tensor,
    seen: Input,
    sample: Tensor,
    before: Tensor,
    scales: dict[str, Any],
) -> bool:
    """Tries it with the norm's weight as a factor, then as a factor less one (Gemma's)."""
    consumers = [module for module in seen.modules if isinstance(module, nn.Linear)]
    kept = {module: module.weight.data for module in consumers}
    bias = getattr(producer, "bias", None)
    own, own_bias = producer.weight.data, None if bias is None else bias.data
    divisor = scale if shared is None else _per_row(scale, shared, rows.stop - rows.start)
    linear = producer in layer.targets
    for less in (0.0,) if own.dim() > 1 else (0.0, 1.0):
        made = own.clone()
        if own.dim() > 1:
            made[rows] /= divisor[:, None]
            exact = divisor
        else:
            # The norm is stored in a short dtype: the linears take exactly the rest, so that nothing is lost.
            name = layer.runner.disk(producer)
            stored = TORCH[layer.runner.model.checkpoint.tensors[name].dtype] if name else torch.float32
            made = ((own + less) / divisor - less).to(stored).float()
            ratio = (own + less) / (made + less)
            exact = torch.where(torch.isfinite(ratio) & (ratio > 0), ratio, torch.ones_like(ratio))
            made = torch.where(exact == ratio, made, own)
        producer.weight.data = made
        if bias is not None and own_bias is not None:
            changed = own_bias.clone()
            changed[rows] /= exact
            bias.data = changed
        full = exact if shared is None else exact[shared]
        for module in consumers:
            module.weight.data = kept[module] * full
        after = next(layer.runner.run(layer.number, sample))
        if float((after - before).norm()) <= CLOSE * float(before.norm()):
            seen.scaled(full)
            _remember(layer, producer, consumers, rows, exact, full, scales, linear)
            return True
    producer.weight.data = own
    if bias is not None and own_bias is not None:
        bias.data = own_bias
    for module in consumers:
        module.weight.data = kept[module]
    return False


def _per_row(scale: Tensor, shared: Tensor, count: int) -> Tensor:
    """The scale of each of the producer's rows: channels that share one have equal scales."""
    found = torch.ones(count)
    found[shared] = scale
    return found


def _remember(
    layer: Layer,
    producer: Any,
    consumers: list[Any],
    rows: slice,
    exact: Tensor,
    full: Tensor,
    scales: dict[str, Any],
    linear: bool,
) -> None:
    """What was scaled, for the check at the end; plain modules are marked, so that their new values are written."""
    if linear:
        outputs = torch.ones(producer.weight.shape[0])
        outputs[rows] = exact
        scales[f"out/{layer.targets[producer].path}"] = outputs.numpy()
    else:
        producer.mlload_scaled = True
    for module in consumers:
        if module in layer.targets:
            scales[f"in/{layer.targets[module].path}"] = full.clone().numpy()
        else:
            module.mlload_scaled = True
