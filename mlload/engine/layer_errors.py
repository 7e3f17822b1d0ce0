"""How far each decoder layer of a quantized folder is from the original, both given what the original sees.

It asks nothing of how the folder came about (scales that were folded, names, layouts): a tool that ruins a model while
every file is whole is seen here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.engine.calibrate_quality import Dequantized
from mlload.engine.layerwise import Layerwise
from mlload.plan.model import Model, read_model


@torch.inference_mode()
def layer_errors(model: Model, output: str, tokens: Tensor, device: str = "cpu") -> dict[str, float]:
    """tokens: int64 [S, L]. A layer's path -> the middle over tokens of ||f'(x) - f(x)|| / ||f(x) - x||: the error as a
    share of what the layer adds. The middle, as a few tokens carry values many times the others'."""
    original = Dequantized(model)  # also where some of its layers were quantized before
    before = Layerwise(model, original.tensor, original.names, device)
    reader = Dequantized(read_model(Checkpoint.open(output)))
    after = Layerwise(model, reader.tensor, reader.names, device)
    hidden = before.embed(tokens)
    after.embed(tokens)
    found = {}
    for number in range(len(before.layers)):
        kept, other = (_through(runner, number, hidden) for runner in (before, after))
        added = (kept - hidden).norm(dim=-1).clamp(min=1e-12)
        error = ((other - kept).norm(dim=-1) / added).flatten()
        found[before.layer_prefix(number).rstrip(".")] = float(error.nan_to_num(nan=torch.inf).median())
        hidden = kept
    return found


def _through(runner: Layerwise, number: int, hidden: Tensor) -> Tensor:
    runner.fill(runner.layer_prefix(number))
    found = torch.cat(list(runner.run(number, hidden)))
    runner.empty(runner.layer_prefix(number))
    return found
