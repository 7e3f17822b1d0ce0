"""Bytes per rank by arithmetic: what a rank reads from disk, and what the engine allocates for it.

Two figures that are never mixed. Disk bytes are the source's own, in file dtype, replication
counted and padding not. Weight bytes are what the engine's parameters take: its dtype, padded
vocabulary, widened scales, no draft layers, one copy of a tied table per stage that uses it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from mlload.checkpoint.tensor import DTYPE_BITS
from mlload.plan.bound import BoundParam
from mlload.plan.cutting import allocated_length, cut_axis, parts_of
from mlload.plan.mesh import Mesh
from mlload.plan.params import Part
from mlload.plan.placement import Placement, place
from mlload.plan.segments import cut_bytes


@dataclass(frozen=True, slots=True)
class RankSizes:
    """Bytes of one rank.

    by_component, by_dtype: of weight_bytes
    disk_by_component:      of disk_bytes
    draft_bytes:            of draft layers, on disk, in none of the other figures
    """

    rank: int
    disk_bytes: int
    weight_bytes: int
    kv_bytes_per_token: int
    kv_state_bytes_per_sequence: int
    by_component: dict[str, int] = field(default_factory=dict)
    by_dtype: dict[str, int] = field(default_factory=dict)
    disk_by_component: dict[str, int] = field(default_factory=dict)
    draft_bytes: int = 0


class DiskSizes:
    """Disk bytes per family and rank; equal slices are computed once."""

    def __init__(self, params: tuple[BoundParam, ...], mesh: Mesh, layers: int, padding: int, tower_tp: bool) -> None:
        self.params = params
        self.mesh = mesh
        self.layers = layers
        self.padding = padding
        self.tower_tp = tower_tp
        self._module: dict[tuple[int, int, int, int], int] = {}

    def of(self, rank: int) -> tuple[dict[str, int], int]:
        """(bytes by component, bytes of draft layers)."""
        found: dict[str, int] = {}
        draft = 0
        for index, param in enumerate(self.params):
            if not param.stored:
                continue
            at = place(param, self.mesh, rank, self.layers, self.tower_tp)
            if at is None:
                continue
            count = self._bytes(index, param, at) * at.modules
            if param.spec.draft:
                draft += count
            else:
                found[param.component] = found.get(param.component, 0) + count
        return found, draft

    def _bytes(self, index: int, param: BoundParam, at: Placement) -> int:
        stacked = -1 if at.stacked is None else len(at.stacked)
        key = (index, at.size, 0 if _even(param, at.size) else at.rank, stacked)
        if key not in self._module:
            self._module[key] = sum(cut_bytes(param, tensor, at, self.padding) for tensor in param.stored)
        return self._module[key]


def _even(param: BoundParam, size: int) -> bool:
    """Every rank's slice has the same length."""
    return size == 1 or all(_divides(part, size) for part in parts_of(param.spec))


def _divides(part: Part, size: int) -> bool:
    if part.cut == "vocab":
        return False
    return part.length % (part.unit * size) == 0 or (part.cut == "kv" and part.length // part.unit <= size)


def plain_bytes(param: BoundParam, size: int, dtype: str, padding: int) -> dict[str, int]:
    """What an engine allocates for one unquantized module (for one expert of a stack), by dtype."""
    spec = param.spec
    axis = cut_axis(spec)
    kept = spec.dtype or dtype
    cut = allocated_length(spec, size, padding) if axis else 0
    extents = zip(spec.axes, spec.shape, strict=True)
    elements = prod(cut if axis and letter == axis else extent for letter, extent in extents if letter != "E")
    if spec.bias is not None:
        elements += cut if axis == "N" else spec.n
    return {kept: elements * DTYPE_BITS[kept] // 8}
