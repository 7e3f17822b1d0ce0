"""What building a rank's model passes around: its result, and one module of the plan on this rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from mlload.loader.destination import Destination
from mlload.plan.bound import BoundParam
from mlload.plan.placement import Placement
from mlload.quant.layers.embedding import VocabParallelEmbedding
from mlload.quant.layers.experts import QuantizedExperts
from mlload.quant.layers.linear import ParallelLinear
from mlload.quant.layers.method import StoredTensor
from mlload.quant.layers.plain_experts import PlainExperts

Replaced = ParallelLinear | VocabParallelEmbedding | QuantizedExperts | PlainExperts


@dataclass
class Built:
    """model: to run once it is filled; destinations: of the rank's own tensors; replaced: layers with a kernel
    transforms: own tensor -> what is to be done to its rows after loading
    beside: tensors that belong to no module of the class: scales of the KV cache, stored rotary tables
    uncounted: own tensors that go to buffers, which are no weights to the engine
    texts: of those, tensors that hold a text; the plan counts one byte for each, whatever its length"""

    model: Any
    destinations: dict[str, Destination] = field(default_factory=dict)
    replaced: dict[str, Replaced] = field(default_factory=dict)
    transforms: dict[str, tuple[str, ...]] = field(default_factory=dict)
    beside: dict[str, nn.Parameter] = field(default_factory=dict)
    uncounted: set[str] = field(default_factory=set)
    texts: int = 0

    def add(self, other: Built) -> None:
        """What was built later, of the same model."""
        self.destinations.update(other.destinations)
        self.replaced.update(other.replaced)
        self.transforms.update(other.transforms)
        self.beside.update(other.beside)
        self.uncounted |= other.uncounted
        self.texts += other.texts


@dataclass
class Part:
    """One module of the plan on this rank: disk path, the class's parameter, and the tensors that stand for it."""

    param: BoundParam
    at: Placement
    path: str
    target: str
    tensors: dict[str, StoredTensor]
    names: dict[str, str]
    expert: int | None = None
