"""How far written weights are from their source's: read back by the formats' own readers, a few rows at a time.

Both sides lie in mapped files. A slab is small enough that everything between its two sides and its two sums stays in a
core's cache; several threads take slabs in turn.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mlload.quant.formats import spec as stored_spec
from mlload.quant.formats.registry import get
from mlload.quant.formats.tensors import Misaligned, unit
from mlload.quant.formats.tensors import shape as stored_shape
from mlload.quant.spec import TensorSpec
from mlload.quantize.allocator import keep_slabs
from mlload.quantize.slabs import ELEMENTS, workers
from mlload.quantize.source import SourceTensors
from mlload.quantize.targets import Target
from mlload.quantize.weights import as_array


class Scaled(NamedTuple):
    """What a weight [N, K] was multiplied by (inputs, [K]) and divided by (outputs, [N]) before it was quantized, each
    float32 or None."""

    inputs: Any = None
    outputs: Any = None


class Side(NamedTuple):
    """Both sides of a target's rows [start, stop)."""

    target: Target
    weight: Tensor
    stored: tuple[tuple[TensorSpec, Any], ...]
    scaled: Scaled
    start: int
    stop: int


def weight_errors(
    targets: Iterable[Target],
    source: SourceTensors,
    written: SourceTensors,
    scaled: Callable[[str], Scaled],
) -> dict[str, float]:
    """Path -> ||W' - W|| / ||W||. scaled: of a target's path"""
    sides, lock = _sides(targets, source, written, scaled), threading.Lock()
    sums: dict[str, list[tuple[float, float]]] = {}
    failed: list[BaseException] = []

    def work() -> None:
        while not failed:
            with lock:
                side = next(sides, None)
            if side is None:
                return
            try:
                found = _squares(side)
            except BaseException as error:
                failed.append(error)
                return
            with lock:
                sums.setdefault(side.target.path, []).append(found)

    keep_slabs()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    threads = [threading.Thread(target=work, name=f"check-{n}", daemon=True) for n in range(workers() - 1)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        torch.set_num_threads(before)
    if failed:
        raise failed[0]
    return {path: _error(found) for path, found in sums.items()}


def _error(found: list[tuple[float, float]]) -> float:
    """From squares of what was lost and of what there was, slab by slab, in whatever order they came."""
    if not all(math.isfinite(lost) for lost, _ in found):
        return math.nan
    lost, size = (math.sqrt(math.fsum(part)) for part in zip(*found, strict=True))
    return lost / size if size else lost


def _sides(
    targets: Iterable[Target], source: SourceTensors, written: SourceTensors, scaled: Callable[[str], Scaled]
) -> Iterator[Side]:
    for target in targets:
        specs = tuple(
            tensor
            for tensor in stored_spec(target.scheme, target.n, target.k)
            if f"{target.path}.{tensor.suffix}" in written.checkpoint.tensors
        )
        stored = tuple(
            (tensor, as_array(written.tensor(f"{target.path}.{tensor.suffix}")).reshape(_whole(tensor, target)))
            for tensor in specs
        )
        weight, factors = source.tensor(target.weight), scaled(target.path)
        step = unit(specs, "N")
        rows = max(step, ELEMENTS // max(1, target.k) // step * step) if step else target.n
        for start in range(0, target.n, rows):
            yield Side(target, weight, stored, factors, start, min(target.n, start + rows))


def _whole(tensor: TensorSpec, target: Target) -> tuple[int, ...]:
    return stored_shape(tensor, target.n, target.k)


def _squares(side: Side) -> tuple[float, float]:
    """Of what was lost, and of the source's own values."""
    target, rows = side.target, slice(side.start, side.stop)
    form = get(target.scheme.format)
    weight = side.weight[rows].float().numpy()
    if side.scaled.inputs is not None:
        weight = weight * side.scaled.inputs
    if side.scaled.outputs is not None:
        weight = weight / side.scaled.outputs[rows, None]
    parts = {}
    for tensor, values in side.stored:
        piece = form.cut(tensor, "N", side.start, side.stop, target.n)
        assert not isinstance(piece, Misaligned), "slabs are multiples of what can be cut"
        if piece.dim is not None:
            at = (slice(None),) * piece.dim + (slice(piece.start, piece.stop),)
            values = np.ascontiguousarray(values[at])
        parts[tensor.suffix] = values
    back = form.dequantize(target.scheme, parts, side.stop - side.start, target.k)
    lost = np.subtract(back, weight).reshape(-1)
    return float(lost @ lost), float(weight.reshape(-1) @ weight.reshape(-1))
