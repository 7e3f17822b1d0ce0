"""Weight bytes: what the engine allocates for parameters on each rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from mlload.plan.allocation import Capability, quantized_bytes
from mlload.plan.bound import BoundParam
from mlload.plan.engine_view import EngineView
from mlload.plan.mesh import Mesh
from mlload.plan.placement import Placement, cut_size, place
from mlload.plan.sizes import plain_bytes
from mlload.plan.stages import on_stage, stage_layers
from mlload.profiles.allocation import attention_bytes

# Experts on a rank (0: a dense module) -> bytes by dtype of one module.
Bytes = Callable[[int], dict[str, int]]


class WeightSizes:
    """Sums the engine's parameters for one rank after the other."""

    def __init__(
        self, view: EngineView, mesh: Mesh, total_layers: int, *, dtype: str, capability: Capability | None
    ) -> None:
        self.view = view
        self.mesh = mesh
        self.total_layers = total_layers
        self.sources = {param.spec.module: param.spec for param in view.params}
        quantized = [layer for layer in view.layers if layer.scheme is not None]
        taken = {id(param) for layer in quantized for param in layer.params}
        # (whose placement says how many modules a rank has, bytes of one of them)
        self.units: list[tuple[BoundParam, Bytes]] = []
        for layer in quantized:
            lead = layer.params[0]
            spec = lead.spec if layer.layers is None else replace(lead.spec, layers=layer.layers)
            count = partial(
                quantized_bytes, layer, method=view.method, dtype=dtype, capability=capability, profile=view.profile
            )
            self.units.append((replace(lead, spec=spec, expert_ids=None), _cached(count)))
        for param in view.params:
            if id(param) not in taken and param.spec.engine and not (param.spec.draft or param.spec.buffer):
                size = cut_size(param.spec, mesh, view.tower_tp)
                self.units.append((param, _plain(plain_bytes(param, size, dtype, view.padding))))
        self.cache = attention_bytes(view.method, dtype, mla=view.mla)

    def of(self, rank: int) -> tuple[dict[str, int], dict[str, int]]:
        """(bytes by component, bytes by dtype) of a rank."""
        components: dict[str, int] = {}
        dtypes: dict[str, int] = {}

        def add(component: str, by_dtype: dict[str, int], count: int) -> None:
            for dtype, nbytes in by_dtype.items():
                components[component] = components.get(component, 0) + nbytes * count
                dtypes[dtype] = dtypes.get(dtype, 0) + nbytes * count

        for param, bytes_of in self.units:
            if param.alias and self._source_is_here(param, rank):
                continue
            at = place(param, self.mesh, rank, self.total_layers, self.view.tower_tp)
            if at is not None:
                add(param.component, bytes_of(_experts(at)), 1 if at.layers is None else len(at.layers))
        if self.cache:
            add("attention", self.cache, self._attention_layers(rank))
        return components, dtypes

    def _source_is_here(self, param: BoundParam, rank: int) -> bool:
        """A tied table costs nothing where the table that it is tied to lies too."""
        source = self.sources.get(param.spec.alias_of or "")
        return source is not None and on_stage(source, self.mesh.pp_rank(rank), self.mesh.pp)

    def _attention_layers(self, rank: int) -> int:
        mine = stage_layers(self.total_layers, self.mesh, self.mesh.pp_rank(rank))
        return sum(1 for layer in self.view.attention_layers if layer in mine)


def _experts(at: Placement) -> int:
    held: Sequence[int] | None = at.stacked if at.stacked is not None else at.experts
    return 0 if held is None else len(held)


def _plain(each: dict[str, int]) -> Bytes:
    """Unquantized experts take as many bytes each as there are experts."""
    return lambda experts: each if experts <= 1 else {dtype: size * experts for dtype, size in each.items()}


def _cached(count: Callable[[int], dict[str, int]]) -> Bytes:
    known: dict[int, dict[str, int]] = {}

    def bytes_of(experts: int) -> dict[str, int]:
        if experts not in known:
            known[experts] = count(experts)
        return known[experts]

    return bytes_of
