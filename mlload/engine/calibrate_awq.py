"""AWQ's scales folded into what produces a linear's input, by the wiring that the architecture declares.

Every fold is proven: the layer must still compute what it computed. Where it does not (a norm that other modules read,
a nonlinear step between), the fold is taken back and the linears keep their scale of 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mlload.engine.calibrate_inputs import Input
from mlload.plan.cutting import parts_of
from mlload.plan.params import Part
from mlload.quant.algorithms import awq
from mlload.quantize.targets import Target
from mlload.quantize.weights import TORCH, scale_dtype

if TYPE_CHECKING:
    from mlload.engine.calibrate import Layer

CLOSE = 2e-4  # relative difference of outputs that rounding of float32 explains


def fold_scales(layer: Layer, inputs: list[Input], sample: Tensor, before: Tensor, scales: dict[str, Any]) -> list[str]:
    """Scales the layer's modules in place; gives a note for each input whose producer could not take its scale.

    sample: what the layer sees; before: what it made of that, unscaled
    """
    folds = [fold for seen in inputs if (fold := _searched_fold(layer, seen)) is not None]
    return fold_all(layer, folds, sample, before, scales)


def fold_all(layer: Layer, folds: list[Fold], sample: Tensor, before: Tensor, scales: dict[str, Any]) -> list[str]:
    """Folds together, proven by one run of the layer; where that fails, one by one."""

    def proven() -> bool:
        after = next(layer.runner.run(layer.number, sample))
        return float((after - before).norm()) <= CLOSE * float(before.norm())

    notes: list[str] = []
    # A norm's weight is a factor, or a factor less one (Gemma's).
    kinds = (0.0, 1.0) if any(fold.norm for fold in folds) else (0.0,)
    for less in kinds if folds else ():
        for fold in folds:
            fold.apply(layer, less)
        if proven():
            break
        for fold in reversed(folds):
            fold.take_back()
    else:
        folds, notes = _one_by_one(layer, folds, kinds, proven)
    for fold in folds:
        fold.keep_no_more()
    for fold in folds:
        fold.remember(layer, scales)
    return notes


def _one_by_one(
    layer: Layer, folds: list[Fold], kinds: tuple[float, ...], proven: Callable[[], bool]
) -> tuple[list[Fold], list[str]]:
    """The folds that hold, applied, and notes of those that do not."""
    held, notes = [], []
    for fold in folds:
        for less in kinds if fold.norm else (0.0,):
            fold.apply(layer, less)
            if proven():
                held.append(fold)
                break
            fold.take_back()
        else:
            where = fold.target.param.spec.wiring
            notes.append(f"{fold.target.path}: its scale cannot be folded into {where}; left at 1")
    return held, notes


def _searched_fold(layer: Layer, seen: Input) -> Fold | None:
    """The best scale of an input, and where it goes; None where nothing is gained or nothing can take it."""
    members = [module for module in seen.modules if module in layer.targets]
    if not members:
        return None
    target = layer.targets[members[0]]
    wired = wiring(layer, target)
    if wired is None or any(layer.targets[m].scheme != target.scheme for m in members):
        return None
    scale = best_scale(members, seen, target, wired[2])
    return None if scale is None else Fold(seen, target, *wired, scale)


def wiring(layer: Layer, target: Target) -> tuple[Any, slice, Tensor | None] | None:
    """The producer of an input, its outputs that are this input, and, where heads are repeated, which channel comes
    from which. None where the architecture declares none that could take a scale."""
    producer: Any = _producer(layer, target)
    if producer is None:
        return None
    rows, shared = _rows(layer, producer, target)
    shared = None if shared is None else shared.to(producer.weight.device)
    return None if rows is None else (producer, rows, shared)


class Fold:
    """A scale [K] of an input: the linears that see it are multiplied by it, what produces it is divided.

    shared: of each channel of the input, the row (counted in `rows`) of the producer that it comes from
    """

    def __init__(
        self, seen: Input, target: Target, producer: Any, rows: slice, shared: Tensor | None, scale: Tensor
    ) -> None:
        self.seen, self.target, self.producer = seen, target, producer
        self.rows, self.shared = rows, shared
        self.divisor = scale if shared is None else _per_row(scale, shared, rows.stop - rows.start)
        every: list[Any] = list(seen.modules)
        self.consumers = [module for module in every if module.weight.dim() == 2]
        self.norm = producer.weight.dim() == 1

    def apply(self, layer: Layer, less: float) -> None:
        """less: what a norm's weight is smaller than the factor that it stands for."""
        producer, rows = self.producer, self.rows
        bias = getattr(producer, "bias", None)
        self.kept = [module.weight.data for module in self.consumers]
        own = self.own = producer.weight.data
        self.own_bias = None if bias is None else bias.data
        if not self.norm:
            made = own.clone()
            made[rows] /= self.divisor[:, None]
            self.exact = self.divisor
        else:
            # The norm is stored in a short dtype: the linears take exactly the rest, so that nothing is lost.
            name = layer.runner.disk(producer)
            stored = TORCH[layer.runner.model.checkpoint.tensors[name].dtype] if name else torch.float32
            made = ((own + less) / self.divisor - less).to(stored).float()
            ratio = (own + less) / (made + less)
            self.exact = torch.where(torch.isfinite(ratio) & (ratio > 0), ratio, torch.ones_like(ratio))
            made = torch.where(self.exact == ratio, made, own)
        producer.weight.data = made
        if self.own_bias is not None:
            changed = self.own_bias.clone()
            changed[rows] /= self.exact
            producer.bias.data = changed
        self.full = self.exact if self.shared is None else self.exact[self.shared]
        for module, weight in zip(self.consumers, self.kept, strict=True):
            module.weight.data = weight * self.full

    def take_back(self) -> None:
        self.producer.weight.data = self.own
        if self.own_bias is not None:
            self.producer.bias.data = self.own_bias
        for module, weight in zip(self.consumers, self.kept, strict=True):
            module.weight.data = weight

    def keep_no_more(self) -> None:
        """What `take_back` would put back."""
        del self.kept, self.own, self.own_bias

    def remember(self, layer: Layer, scales: dict[str, Any]) -> None:
        """What was scaled, for the check at the end; modules are marked, so that what is stored of them plainly (norms,
        biases) is written with its new values."""
        self.seen.scaled(self.full)
        self.producer.mlload_scaled = True
        if self.producer in layer.targets:
            outputs = self.exact.new_ones(self.producer.weight.shape[0])
            outputs[self.rows] = self.exact
            scales[f"out/{layer.targets[self.producer].path}"] = outputs.cpu().numpy()
        full = self.full.clone().cpu().numpy()
        for module in self.consumers:
            if module in layer.targets:
                scales[f"in/{layer.targets[module].path}"] = full
            else:
                module.mlload_scaled = True


def _producer(layer: Layer, target: Target) -> nn.Module | None:
    wiring = target.param.spec.wiring
    if wiring is None:
        return None
    return layer.by_disk.get(wiring.replace("{layer}", _layer_of(target)))


def _layer_of(target: Target) -> str:
    head = target.param.spec.module.split("{layer}", 1)[0]
    return target.path[len(head) :].split(".", 1)[0]


def _rows(layer: Layer, producer: Any, target: Target) -> tuple[slice | None, Tensor | None]:
    """The producer's outputs that are this input, and, where they are not these in their order, which channel of the
    input comes from which."""
    n = producer.weight.shape[0]
    made = layer.targets.get(producer)
    if made is None:
        return (slice(0, n), None) if n == target.k else (None, None)
    spec = made.param.spec
    parts, groups = parts_of(spec), spec.groups
    number = next((i for i, part in enumerate(parts) if part.role in ("v", "up")), 0)
    part, before = parts[number], sum(part.length for part in parts[:number])
    if part.role == "kv":
        values = _values_of_latent(part, target.k)
        return (None, None) if values is None else (slice(0, n), values)
    first = slice(before, before + part.length)
    channel = None if part.length == target.k else _repeated(part, target.k)
    if part.length != target.k and channel is None:
        return None, None
    if groups == 1:
        return first, channel
    # Each group holds a share of every part in turn.
    row = torch.arange(part.length)
    share = part.length // groups
    row = row // share * (n // groups) + before // groups + row % share
    return slice(0, n), row if channel is None else row[channel]


def _repeated(part: Part, k: int) -> Tensor | None:
    """Channel (head, d) of the input comes from row (head // repeats, d) of v."""
    if part.role != "v" or k % part.length:
        return None
    repeats, width = k // part.length, part.unit
    channel = torch.arange(k)
    return (channel // width // repeats) * width + channel % width


def _values_of_latent(part: Part, k: int) -> Tensor | None:
    """Of latent attention each head holds its key, then its value."""
    heads = part.length // part.unit
    if k % heads or k // heads >= part.unit:
        return None
    width = k // heads
    channel = torch.arange(k)
    return channel // width * part.unit + part.unit - width + channel % width


def best_scale(members: list[Any], seen: Input, target: Target, shared: Tensor | None) -> Tensor | None:
    scheme = target.scheme
    scale, loss, without = awq.search_scale(
        [module.weight for module in members],
        seen.moment,
        seen.magnitude,
        scheme.bits,
        -1 if scheme.group_size is None else scheme.group_size,
        symmetric=scheme.symmetric,
        dtype=TORCH[scale_dtype(scheme, target.dtype)],
        shared=shared,
    )
    return scale if loss < without else None


def _per_row(scale: Tensor, shared: Tensor, count: int) -> Tensor:
    """The scale of each of the producer's rows: channels that share one have equal scales."""
    found = scale.new_ones(count)
    found[shared] = scale
    return found
