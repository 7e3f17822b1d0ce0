"""Which tensors are missing, left over, or of another shape than the architecture says.

`Completeness` collects while families are bound; what was collected becomes findings in
`plan.missing`, `plan.left_over` and `plan.misshapen`, the widest explanation first: a block under
another prefix, whole layers, single modules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mlload.checkpoint.finding import Finding
from mlload.checkpoint.tensor import TensorRef
from mlload.plan.params import ParamSpec
from mlload.quant.spec import Scheme, TensorSpec

Shape = tuple[int, ...]


class Expected(NamedTuple):
    """A tensor that each module of a family should have: name suffix with its dot, and stored shape."""

    suffix: str
    tensor: TensorSpec
    shape: Shape


class Gap(NamedTuple):
    """One module that lacks tensors. layer is -1 outside the layers, expert None for a dense module.

    absent:  required and not there
    present: of its tensors, those that are there (biases do not count)
    """

    spec: ParamSpec
    scheme: Scheme | None
    layer: int
    expert: int | None
    absent: tuple[Expected, ...]
    present: tuple[str, ...]

    @property
    def path(self) -> str:
        path = self.spec.module if self.layer < 0 else self.spec.module.replace("{layer}", str(self.layer))
        return path if self.expert is None else path.replace("{expert}", str(self.expert))

    @property
    def names(self) -> list[str]:
        path = self.path
        return [path + expected.suffix for expected in self.absent]


class Misfit(NamedTuple):
    """A tensor of another shape, in all the places where it is the same one. actual is in stored elements."""

    spec: ParamSpec
    expected: Expected
    actual: Shape
    places: list[tuple[int, int | None]]


class Completeness:
    """config: config.json, to name the fields at fault; sure: the expected set is a table's, not a guess."""

    def __init__(self, *, quantized: bool, config: Mapping[str, Any], sure: bool = True) -> None:
        self.quantized = quantized
        self.config = config
        self.sure = sure
        self.towers = False
        self.gaps: list[Gap] = []
        self.layers: dict[str, set[int]] = {}
        self.expected_layers: dict[str, set[int]] = {}
        self._found: list[Sequence[TensorRef]] = []
        self._misfits: dict[tuple[str, Expected, Shape], Misfit] = {}

    def found(self, refs: Sequence[TensorRef]) -> None:
        self._found.append(refs)

    def family(self, spec: ParamSpec, layers: Sequence[int]) -> None:
        """Layers in which a family has at least one of its tensors."""
        self.towers |= spec.mesh == "tower"
        if spec.layers is not None and not spec.draft:
            head = spec.module.partition("{layer}")[0]
            self.layers.setdefault(head, set()).update(layers)
            self.expected_layers.setdefault(head, set()).update(spec.layers)

    def gap(self, gap: Gap) -> None:
        self.gaps.append(gap)

    def misfit(self, spec: ParamSpec, expected: Expected, layer: int, expert: int | None, actual: Shape) -> None:
        key = (spec.module, expected, actual)
        self._misfits.setdefault(key, Misfit(spec, expected, actual, [])).places.append((layer, expert))

    def left_over(self, tensors: Mapping[str, TensorRef]) -> list[TensorRef]:
        """Tensors that no family has claimed so far."""
        names = {ref.name for refs in self._found for ref in refs}
        return [] if len(names) == len(tensors) else [ref for name, ref in tensors.items() if name not in names]

    def findings(self, tensors: Mapping[str, TensorRef]) -> tuple[Finding, ...]:
        left = self.left_over(tensors)
        if not (left or self.gaps or self._misfits):
            return ()
        from mlload.plan.left_over import beyond_the_layers, moved_blocks, unexpected
        from mlload.plan.misshapen import misshapen
        from mlload.plan.missing import half_stored, missing, missing_layers

        found: list[Finding] = []
        gaps = self.gaps
        if gaps and left:
            blocks, gaps, left = moved_blocks(gaps, left, self.sure)
            halves, gaps, left = half_stored(gaps, left, self.quantized)
            found += (*blocks, *halves)
        beyond, left = beyond_the_layers(left, self.expected_layers, self.config, self.sure)
        lost, gaps = missing_layers(gaps, self.layers, self.quantized)
        return (
            *found,
            *beyond,
            *lost,
            *missing(gaps, self.quantized),
            *misshapen(self._misfits.values(), self.config),
            *unexpected(left, self.config, sure=self.sure, quantized=self.quantized, towers=self.towers),
        )
