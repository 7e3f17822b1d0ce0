"""Perplexity before and after, and how far the distributions of the next token moved, layer by layer."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.engine.calibrate_activations import round_inputs
from mlload.engine.layerwise import Layerwise
from mlload.plan.model import Model, read_model
from mlload.quant.formats.registry import get
from mlload.quantize.source import SourceTensors
from mlload.quantize.weights import as_array


def quality_of(model: Model, output: str, calibration: Any, samples: int) -> dict[str, Any]:
    """Of the source and of the folder that was written: its weights dequantized, activations rounded as schemes say.

    KL is the mean over tokens of sum p log(p / q), p of the source.
    """
    tokens = calibration.held_out[:samples]
    original = Dequantized(model)
    before = Layerwise(model, original.tensor, original.names, calibration.device)
    written = read_model(Checkpoint.open(output))
    reader = Dequantized(written)
    after = Layerwise(model, reader.tensor, reader.names, calibration.device)
    rounded = round_inputs(after, reader.quantized, reader.source.tensor)
    states = [final(runner, tokens) for runner in (before, after)]
    loss = [0.0, 0.0]
    divergence, count = 0.0, 0
    for sample, one, other in zip(
        tokens, before.logits(tokens, states[0]), after.logits(tokens, states[1]), strict=True
    ):
        p, q = torch.log_softmax(one[:-1], -1), torch.log_softmax(other[:-1], -1)
        for number, found in enumerate((p, q)):
            loss[number] -= float(found.gather(1, sample[1:, None]).sum())
        divergence += float((p.exp() * (p - q)).sum())
        count += len(sample) - 1
    return {
        "perplexity_before": math.exp(loss[0] / count),
        "perplexity_after": math.exp(loss[1] / count),
        "kl": divergence / count,
        "tokens": count,
        "source": f"held-out text ({calibration.source})",
        "activations": f"rounded in {rounded} linears" if rounded else "not rounded",
    }


def final(runner: Layerwise, tokens: Tensor) -> Tensor:
    """What the last layer gives for every sample."""
    hidden = runner.embed(tokens)
    for number in range(len(runner.layers)):
        runner.fill(runner.layer_prefix(number))
        hidden = torch.cat(list(runner.run(number, hidden)))
        runner.empty(runner.layer_prefix(number))
    return hidden


class Dequantized:
    """A quantized checkpoint under the names of the unquantized one."""

    def __init__(self, model: Model) -> None:
        self.source = SourceTensors(model.checkpoint)
        self.quantized: dict[str, Any] = {}
        standing: set[str] = set()
        for param in model.params:
            if param.scheme is not None:
                for path in param.modules():
                    self.quantized[f"{path}.weight"] = (path, param)
                    standing.update(path + s.suffix for s in param.stored if s.role != "bias")
        self.names = [name for name in model.checkpoint.tensors if name not in standing] + list(self.quantized)

    def finite(self, name: str) -> Tensor:
        """The same. Raises MlloadError where it holds NaN or infinity."""
        return self.tensor(name) if name in self.quantized else self.source.finite(name)

    def tensor(self, name: str) -> Tensor:
        if name not in self.quantized:
            return self.source.tensor(name)
        path, param = self.quantized[name]
        parts = {s.suffix.removeprefix("."): as_array(self.source.tensor(path + s.suffix)) for s in param.stored}
        scheme = param.scheme
        return torch.from_numpy(get(scheme.format).dequantize(scheme, parts, param.spec.n, param.spec.k))
