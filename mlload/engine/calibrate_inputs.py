"""What the linears of a layer see, as second moments: linears that see one tensor share one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mlload.engine.layerwise import Layerwise
from mlload.quant.algorithms import moment

ROWS = 256  # of a moment, divided at a time


@dataclass
class Input:
    """modules: linears that see it, in the order of their calls
    moment: sum of x x^T over all tokens, float32 [K, K], or where `diagonal` only its diagonal, [K]
    total: sum of |x|, [K]; peak: greatest |x|, [K]; tokens: how many"""

    modules: list[nn.Module] = field(default_factory=list)
    moment: Tensor = field(default_factory=lambda: torch.zeros(()))
    total: Tensor = field(default_factory=lambda: torch.zeros(()))
    tokens: int = 0
    peak: Tensor = field(default_factory=lambda: torch.zeros(()))
    diagonal: bool = False

    @property
    def magnitude(self) -> Tensor:
        """Mean of |x|, [K]."""
        return self.total / max(1, self.tokens)

    def add(self, x: Tensor) -> None:
        rows = x.reshape(-1, x.shape[-1]).float()
        size = rows.abs()
        if self.tokens == 0:
            k = rows.shape[1]
            self.moment = rows.new_zeros(k) if self.diagonal else rows.new_zeros(k, k)
            self.total, self.peak = rows.new_zeros(k), rows.new_zeros(k)
        if self.diagonal:
            self.moment += rows.square().sum(0)
        else:
            moment.accumulate(self.moment, rows)
        self.total += size.sum(0)
        self.peak = torch.maximum(self.peak, size.amax(0))
        self.tokens += rows.shape[0]

    def scaled(self, scale: Tensor) -> None:
        """The inputs were divided by `scale` [K]."""
        if self.diagonal:
            self.moment /= scale.square()
        else:
            for at in range(0, len(scale), ROWS):
                self.moment[at : at + ROWS] /= scale[at : at + ROWS, None] * scale[None, :]
        self.total /= scale
        self.peak /= scale


def nothing_seen(module: nn.Module, largest: float) -> Input:
    """Of a linear that no token reached: all channels alike, so that only its weights count. largest: |x| to allow."""
    weight = module.get_parameter("weight")
    k = int(weight.shape[1])
    one = weight.new_ones(k)
    return Input([module], torch.eye(k, device=weight.device), one, 0, one * largest)


@torch.inference_mode()
def measured(runner: Layerwise, number: int, hidden: Tensor, outputs: Tensor, *, diagonal: bool = False) -> list[Input]:
    """The inputs of a layer's linears over all samples [S, L, H]; the layer's outputs go to `outputs`. diagonal: of
    second moments only that is kept."""
    inputs: list[Input] = []
    of_module: dict[nn.Module, Input] = {}
    # Kept while a sample runs, so that no other tensor gets the address.
    seen: dict[tuple[int, int], tuple[Tensor, Input]] = {}

    def look(module: nn.Module, args: tuple[Any, ...]) -> None:
        x = args[0]
        key = (x.data_ptr(), x.numel())
        if key in seen:
            found = seen[key][1]
            if of_module.setdefault(module, found) is found and module not in found.modules:
                found.modules.append(module)
            return
        mine = of_module.get(module)
        if mine is None:
            mine = of_module[module] = Input([module], diagonal=diagonal)
            inputs.append(mine)
        seen[key] = (x, mine)
        mine.add(x)

    hooks = [
        module.register_forward_pre_hook(look)
        for module in runner.layers[number].modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        for at, output in enumerate(runner.run(number, hidden)):
            outputs[at] = output[0]
            seen.clear()
    finally:
        for hook in hooks:
            hook.remove()
    for found in inputs:
        moment.mirror(found.moment)
    return inputs
