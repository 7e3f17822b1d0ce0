"""Methods that look at data: one decoder layer at a time is read, measured, quantized and written.

What a layer's linears see is kept as second moments H = X^T X, one for each distinct input; from these the methods
compute, without another forward pass. Samples go on through the quantized layer (--sequential) or the original one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mlload.checkpoint.finding import MlloadError
from mlload.engine.calibrate_awq import fold_scales
from mlload.engine.calibrate_experts import quantize_layer
from mlload.engine.calibrate_inputs import Input, measured, nothing_seen
from mlload.engine.calibrate_quality import Dequantized
from mlload.engine.calibrate_rounding import quantize_rounded, smooth
from mlload.engine.calibrate_samples import NAMES, Samples
from mlload.engine.layerwise import Layerwise
from mlload.plan.model import Model
from mlload.quant.algorithms import awq, gptq, integer
from mlload.quant.algorithms.moment import judged, output_error
from mlload.quant.spec import Scheme
from mlload.quantize.compare import Scaled
from mlload.quantize.kv import CachePeaks, attentions, kv_scales
from mlload.quantize.recipe import CALIBRATED, Recipe
from mlload.quantize.stream import Sheets, copy_tensor
from mlload.quantize.targets import Target, Targets
from mlload.quantize.weights import TORCH, as_array, scale_dtype
from mlload.writer.folder import OutputFolder

STATE = "mlload-calibration.npz"
SLAB = 1 << 20  # elements of a weight
TEMPORARY = (*NAMES, STATE + ".new.npz", STATE)


def write_calibrated(
    model: Model, targets: Targets, recipe: Recipe, sheets: Sheets, calibration: Any, step: Callable[[int], None]
) -> dict[str, Any]:
    """Everything of the source, layer by layer. Gives `scaled` (of weights, for the check), `outputs` (relative
    error of each linear's outputs), `experts` (how many tokens chose each), `notes`, and `temporary`: files that only
    an interrupted run needs."""
    torch.manual_seed(calibration.seed)
    checkpoint = model.checkpoint
    reader = Dequantized(model)  # also where some layers were quantized before: those are copied
    runner = Layerwise(model, reader.finite, reader.names, calibration.device)
    state = State(os.path.join(sheets.folder.partial, STATE), sheets.folder.done)
    hidden = Samples(sheets.folder.partial, (*calibration.samples.shape, model.config.hidden))
    if state.done and not hidden.whole(state.done):
        raise MlloadError(
            f"{sheets.folder.partial} lacks the samples that it would go on from",
            hint="remove that folder, or leave out --resume",
            exit_code=1,
        )
    cached = attentions(model) if recipe.kv_cache else {}
    peaks = runner.cache = CachePeaks() if recipe.kv_cache else None
    inside = {name for number in range(len(runner.layers)) for name in runner.layer_tensors(number)}
    by_weight = {target.weight: target for target in targets.targets}
    if state.done:
        runner.embed(calibration.samples[:1])  # for what layers are called with
    else:
        runner.embed(calibration.samples, hidden.before(0))
        for name in checkpoint.tensors:
            if name not in inside:
                step(checkpoint.tensors[name].nbytes)
                copy_tensor(checkpoint, name, sheets)
    for number in range(len(runner.layers)):
        names = [name for name in runner.layer_tensors(number) if name in checkpoint.tensors]
        step(sum(checkpoint.tensors[name].nbytes for name in names))
        if number < state.done:
            continue
        runner.fill(runner.layer_prefix(number))
        layer = Layer(runner, number, by_weight)
        _one_layer(layer, hidden.before(number), hidden.after(number), recipe, calibration, sheets, state)
        for name in names:
            if name not in by_weight:
                _put_plain(layer, name, sheets)
        if peaks is not None and number in cached:
            for name, scale in kv_scales(peaks, number, cached[number]).items():
                sheets.put(name, as_array(scale).tobytes())
        runner.empty(runner.layer_prefix(number))
        # In this order: the state may be ahead of the record, and never ahead of the bytes.
        sheets.sync()
        hidden.sync(number)
        state.save(number + 1)
        sheets.folder.record(number + 1)

    return {
        "scaled": state.scaled,
        "outputs": state.outputs,
        "notes": state.notes,
        "experts": state.experts,
        "temporary": TEMPORARY,
    }


def refuse_what_cannot_run(model: Model) -> None:
    """Raises MlloadError as `write_calibrated` does where transformers has no class that runs a layer at a time."""
    reader = Dequantized(model)
    Layerwise(model, reader.finite, reader.names)


def what_was_done(recipe: Recipe, folder: OutputFolder) -> dict[str, Any]:
    """The same of a folder that an interrupted run had written to its end. `compared`: whether what its check needs is
    still there."""
    path = os.path.join(folder.partial, STATE)
    state = State(path, folder.done if os.path.exists(path) else 0)
    scaled = recipe.method == "awq" or recipe.smooth is not None
    compared = bool(state.done) or not scaled
    notes = list(state.notes)
    if not state.done:
        notes.append("the run that wrote this was stopped at its very end; errors of outputs were lost with it")
    return {
        "scaled": state.scaled,
        "outputs": state.outputs,
        "notes": notes,
        "experts": state.experts,
        "temporary": TEMPORARY,
        "compared": compared,
    }


class Layer:
    """One filled layer: its modules, and which of them are targets."""

    def __init__(self, runner: Layerwise, number: int, by_weight: dict[str, Target]) -> None:
        self.runner = runner
        self.number = number
        self.module = runner.layers[number]
        self.by_weight = by_weight
        self.targets: dict[nn.Module, Target] = {}
        self.by_disk: dict[str, nn.Module] = {}
        for path, module in self.module.named_modules():
            name = runner.params.get(f"{runner.layer_prefix(number)}{path}.weight")
            if name is not None:
                self.by_disk[name.removesuffix(".weight")] = module
                if name in by_weight:
                    self.targets[module] = by_weight[name]


class State:
    """What an interrupted run needs to go on beside the samples: how far it came, and what was scaled."""

    def __init__(self, path: str, done: int) -> None:
        self.path = path
        self.done = 0
        self.scales: dict[str, Any] = {}
        self.outputs: dict[str, float] = {}
        self.experts: dict[str, dict[str, list[int]]] = {}
        self.notes: list[str] = []
        if not done or not os.path.exists(path):
            return
        with np.load(path, allow_pickle=False) as held:
            about = json.loads(str(held["about"]))
            # The record may be one layer behind: that layer is then done again from where it began.
            if about["done"] == done or about["done"] == done + 1:
                self.done = about["done"]
                self.outputs, self.notes, self.experts = about["outputs"], about["notes"], about["experts"]
                self.scales = {k: held[k] for k in held.files if k.startswith(("in/", "out/"))}
                self.scales |= {key: self.scales[same] for key, same in about["same"].items()}

    def save(self, done: int) -> None:
        # Many linears share one scale: all experts of a layer, and what produces it with what takes it.
        first: dict[int, str] = {}
        same = {key: kept for key, scale in self.scales.items() if (kept := first.setdefault(id(scale), key)) != key}
        about = {"done": done, "outputs": self.outputs, "notes": self.notes, "experts": self.experts, "same": same}
        temporary = self.path + ".new.npz"
        with open(temporary, "wb") as handle:
            arrays = {key: scale for key, scale in self.scales.items() if key not in same}
            np.savez(handle, about=np.array(json.dumps(about)), **arrays)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, self.path)

    def scaled(self, path: str) -> Scaled:
        """What the weight at a target's path was scaled by before it was quantized."""
        return Scaled(self.scales.get(f"in/{path}"), self.scales.get(f"out/{path}"))


@torch.inference_mode()
def _one_layer(
    layer: Layer, hidden: Tensor, outputs: Tensor, recipe: Recipe, calibration: Any, sheets: Sheets, state: State
) -> None:
    """Quantizes and writes the targets of a layer; what the next one sees goes to `outputs`."""

    largest = 0.0

    def quantize(seen: Input) -> None:
        nonlocal largest
        largest = max(largest, float(seen.peak.max()))
        for members in _alike(seen, layer):
            if recipe.method in CALIBRATED:
                _quantize(members, seen, layer, recipe, calibration, sheets, state)
            else:
                quantize_rounded(members, seen, layer, recipe, sheets, state)

    if layer.number in layer.runner.experts:
        quantize_layer(layer, hidden, outputs, state, sheets.folder.partial, quantize, recipe=recipe)
    else:
        inputs = measured(layer.runner, layer.number, hidden, outputs, diagonal=recipe.method not in CALIBRATED)
        if recipe.method == "awq":
            state.notes += fold_scales(layer, inputs, hidden[:1], outputs[:1], state.scales)
        if recipe.smooth is not None:
            smooth(layer, inputs, recipe.smooth, hidden[:1], outputs[:1], state)
        while inputs:
            quantize(inputs.pop(0))  # its moment is let go
    for module, target in layer.targets.items():
        if target.path not in state.outputs:
            quantize(nothing_seen(module, largest or 1.0))
            state.notes.append(f"{target.path}: no token reached it; rounded by its weights alone")
    if recipe.sequential and layer.number not in layer.runner.experts:
        for at, output in enumerate(layer.runner.run(layer.number, hidden)):
            outputs[at] = output[0]


def _alike(seen: Input, layer: Layer) -> list[list[Any]]:
    """Targets that see one input under one scheme: they are quantized as one matrix."""
    found: dict[Scheme, list[Any]] = {}
    for module in seen.modules:
        if module in layer.targets:
            found.setdefault(layer.targets[module].scheme, []).append(module)
    return list(found.values())


def _quantize(
    members: list[Any], seen: Input, layer: Layer, recipe: Recipe, calibration: Any, sheets: Sheets, state: State
) -> None:
    scheme = layer.targets[members[0]].scheme
    group = -1 if scheme.group_size is None else scheme.group_size
    prepared = None
    if recipe.method == "gptq":
        prepared = gptq.prepare(seen.moment, act_order=calibration.act_order)
    for module in members:
        target, weight = layer.targets[module], module.weight.data
        dtype = TORCH[scale_dtype(scheme, target.dtype)]
        kind: dict[str, Any] = {"symmetric": scheme.symmetric, "dtype": dtype}
        if recipe.clip:
            grid = awq.clipped_grid(weight, seen.moment, scheme.bits, group, **kind)
        else:
            grid = integer.fit(weight, scheme.bits, group, clip=False, **kind)
        if prepared is None:
            codes = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device)
            for rows, part in _slabs(grid, weight):
                codes[rows] = integer.quantize(weight[rows], part)
        else:
            codes = gptq.quantize(weight, prepared, grid)
        sheets.put_packed(target, codes, grid)
        before = judged(weight)
        for rows, part in _slabs(grid, weight):
            weight[rows] = integer.dequantize(codes[rows], part)
        state.outputs[target.path] = output_error(before, judged(weight), seen.moment)


def _slabs(grid: integer.Grid, weight: Tensor) -> Iterator[tuple[slice, integer.Grid]]:
    """Rows of a weight that are worked on together, and their grid."""
    step = max(1, SLAB // weight.shape[1])
    for start in range(0, len(weight), step):
        rows = slice(start, start + step)
        yield rows, integer.Grid(grid.scale[rows], grid.zero[rows], grid.bits, grid.group)


def _put_plain(layer: Layer, name: str, sheets: Sheets) -> None:
    """A tensor that is not quantized: its bytes as they are, or its new values where a scale was folded into it."""
    checkpoint = layer.runner.model.checkpoint
    path, _, last = name.rpartition(".")
    module = layer.by_disk.get(path)
    if module is None or not getattr(module, "mlload_scaled", False):
        copy_tensor(checkpoint, name, sheets)
        return
    values = getattr(module, last).to(TORCH[checkpoint.tensors[name].dtype])
    sheets.put(name, as_array(values).tobytes())
