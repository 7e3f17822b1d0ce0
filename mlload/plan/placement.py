"""Where one family lies on one rank: its stage's layers, its experts, and its place among those that cut it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mlload.plan.bound import BoundParam
from mlload.plan.mesh import Mesh, experts_of
from mlload.plan.params import ParamSpec
from mlload.plan.stages import layers_on_stage


class Placement(NamedTuple):
    """layers:  those of the family on this rank's stage; None for a module outside the layers
    size, rank: how many ranks cut one module, and which of them this is
    experts:    of experts stored apart: those on this rank
    stacked:    of experts in one tensor: the run of them on this rank, None where there are none
    """

    layers: Sequence[int] | None
    size: int
    rank: int
    experts: Sequence[int] | None = None
    stacked: range | None = None

    @property
    def modules(self) -> int:
        """How many modules of the family this rank has (parts of)."""
        layers = 1 if self.layers is None else len(self.layers)
        return layers * (1 if self.experts is None else len(self.experts))


def is_expert(spec: ParamSpec) -> bool:
    """Whether the family belongs to routed experts, which expert parallelism deals out."""
    return spec.experts is not None or "E" in spec.axes


def cut_size(spec: ParamSpec, mesh: Mesh, tower_tp: bool = True) -> int:
    """How many ranks cut one module of the family."""
    if spec.style == "replicated":
        return 1
    if spec.mesh == "tower" and not tower_tp:
        return 1
    if is_expert(spec):
        return 1 if mesh.ep else mesh.moe_size
    return mesh.tp


def place(param: BoundParam, mesh: Mesh, rank: int, total_layers: int, tower_tp: bool = True) -> Placement | None:
    """The family's placement on a rank (of the first data-parallel replica), None where it has nothing of it.

    tower_tp: towers are cut like the text model; False where the engine replicates them
    """
    spec = param.spec
    layers = layers_on_stage(spec, total_layers, mesh, mesh.pp_rank(rank))
    if layers is not None and not layers:
        return None
    size = cut_size(spec, mesh, tower_tp)
    tp_rank = mesh.tp_rank(rank) if size > 1 else 0
    experts = param.experts
    stacked = None
    if is_expert(spec):
        mine = experts_of(param.expert_total, mesh.moe_size, mesh.tp_rank(rank)) if mesh.ep else None
        if experts is None:
            stacked = range(param.expert_total) if mine is None else mine
        elif mine is not None:
            experts = [expert for expert in experts if expert in mine]
            if not experts:
                return None
    return Placement(layers, size, tp_rank, experts, stacked)
