"""Weight bytes: what the engine allocates for parameters on each rank."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from mlload.plan.bound import BoundParam
from mlload.plan.engine_layers import PlannedLayer
from mlload.plan.mesh import Mesh
from mlload.plan.placement import cut_size, place
from mlload.plan.sizes import Allocation, plain_bytes
from mlload.plan.stages import on_stage


class Unit(NamedTuple):
    """Equal modules of the engine.

    param:   whose placement says how many of them a rank has
    by_dtype: bytes of one module (of one expert where there are experts)
    """

    param: BoundParam
    by_dtype: dict[str, int]


class WeightSizes:
    """Sums the engine's parameters for one rank after the other."""

    def __init__(
        self,
        params: tuple[BoundParam, ...],
        layers: tuple[PlannedLayer, ...],
        mesh: Mesh,
        total_layers: int,
        *,
        dtype: str,
        padding: int,
        tower_tp: bool,
        allocate: Allocation,
    ) -> None:
        self.mesh = mesh
        self.total_layers = total_layers
        self.tower_tp = tower_tp
        self.stage_of = {param.spec.module: param.spec for param in params}
        quantized = [layer for layer in layers if layer.scheme is not None]
        taken = {id(param) for layer in quantized for param in layer.params}
        self.units = [_quantized_unit(layer, allocate(layer)) for layer in quantized]
        self.units += [
            Unit(param, plain_bytes(param, cut_size(param.spec, mesh, tower_tp), dtype, padding))
            for param in params
            if id(param) not in taken and param.spec.engine and not param.spec.draft
        ]

    def of(self, rank: int) -> tuple[dict[str, int], dict[str, int]]:
        """(bytes by component, bytes by dtype) of a rank."""
        components: dict[str, int] = {}
        dtypes: dict[str, int] = {}
        for unit in self.units:
            param = unit.param
            if param.alias and self._source_is_here(param, rank):
                continue
            at = place(param, self.mesh, rank, self.total_layers, self.tower_tp)
            if at is None:
                continue
            count = at.modules * (1 if at.stacked is None else len(at.stacked))
            for dtype, nbytes in unit.by_dtype.items():
                components[param.component] = components.get(param.component, 0) + nbytes * count
                dtypes[dtype] = dtypes.get(dtype, 0) + nbytes * count
        return components, dtypes

    def _source_is_here(self, param: BoundParam, rank: int) -> bool:
        """A tied table costs nothing where the table that it is tied to lies too."""
        source = self.stage_of.get(param.spec.alias_of or "")
        return source is not None and on_stage(source, self.mesh.pp_rank(rank), self.mesh.pp)


def _quantized_unit(layer: PlannedLayer, by_dtype: dict[str, int]) -> Unit:
    lead = layer.params[0]
    spec = lead.spec
    if layer.layers is not None:
        spec = replace(spec, layers=layer.layers)
    return Unit(replace(lead, spec=spec, expert_ids=None), by_dtype)
