"""`BoundParam`: a family of modules together with the tensors that stand for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from mlload.plan.params import ParamSpec
from mlload.plan.stored import Stored
from mlload.quant.spec import Scheme


@dataclass(frozen=True, slots=True)
class BoundParam:
    """A family of one scheme, one set of tensors and one dtype each.

    spec:        narrowed to the layers that this part of the family has
    scheme:      how its weight is quantized, None for not at all
    stored:      the tensors of one module; empty where nothing is on disk (a tied head, an
                 engine's own parameter, a missing module)
    expert_ids:  of experts stored apart, those that this part has; None = all of them or none
    expert_total: experts of the layer, over all parts of the family; 0 for a dense module
    alias:       tied: its tensor is that of `spec.alias_of`
    """

    spec: ParamSpec
    scheme: Scheme | None
    stored: tuple[Stored, ...]
    expert_ids: Sequence[int] | None = None
    expert_total: int = 0
    alias: bool = False

    @property
    def component(self) -> str:
        return "draft" if self.spec.draft else self.spec.component

    @property
    def count(self) -> int:
        """Modules in this part of the family."""
        layers = 1 if self.spec.layers is None else len(self.spec.layers)
        if self.spec.experts is None:
            return layers
        return layers * (self.spec.experts if self.expert_ids is None else len(self.expert_ids))

    @property
    def module_bytes(self) -> int:
        """Bytes on disk of one module."""
        return sum(tensor.nbytes for tensor in self.stored)

    @property
    def disk_bytes(self) -> int:
        return self.module_bytes * self.count

    @property
    def elements(self) -> int:
        """Parameters as the model counts them (a 4-bit weight is one). Tied ones are none of their own, a stored
        copy of a tied table included; nor are those that only the engine has."""
        if self.spec.alias_of is not None or self.spec.engine_only or not self.stored:
            return 0
        count = prod(self.spec.shape)
        if self.spec.bias is not None:
            count += self.spec.n * (self.spec.shape[self.spec.axes.index("E")] if "E" in self.spec.axes else 1)
        return count * self.count

    @property
    def experts(self) -> Sequence[int] | None:
        """Experts stored apart that this part has."""
        if self.spec.experts is None:
            return None
        return range(self.spec.experts) if self.expert_ids is None else self.expert_ids

    def modules(self) -> Iterator[str]:
        """Every disk path, layers outermost."""
        if self.expert_ids is None:
            yield from self.spec.modules()
            return
        for layer in self.spec.layers or (None,):
            path = self.spec.module if layer is None else self.spec.module.replace("{layer}", str(layer))
            for expert in self.expert_ids:
                yield path.replace("{expert}", str(expert))
