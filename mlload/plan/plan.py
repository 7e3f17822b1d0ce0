"""`make_plan`: who holds what, for one model on one engine and one mesh.

The plan is symbolic. A rule is stored once per family; sizes come from arithmetic; segments are
expanded for one rank when somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from mlload.checkpoint.finding import Finding
from mlload.plan.alignment_rules import unknown_methods
from mlload.plan.dtype import resolve_dtype, torch_dtype
from mlload.plan.engine_layers import PlannedLayer
from mlload.plan.engine_view import EngineView
from mlload.plan.kv import KV_DTYPES, KVClass, kv_classes
from mlload.plan.mesh import Mesh
from mlload.plan.model import Model
from mlload.plan.placement import place
from mlload.plan.segments import Segment, segments
from mlload.plan.size_hints import TENSOR_SIZES, size_hints
from mlload.plan.sizes import DiskSizes, RankSizes
from mlload.plan.stages import stage_sizes
from mlload.plan.unknowns import Unknown
from mlload.plan.violations import violations
from mlload.plan.weights import WeightSizes
from mlload.profiles import Profile

Capability = tuple[int, int]

# Stages that `sizes_that_work` tries.
STAGE_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Plan:
    """model, profile, mesh: what was asked
    dtype:      that the engine computes in ("BF16")
    kv_dtype:   of keys and values
    capability: of the GPU, None where none was named
    violations: every violated rule of every layer, folded
    unknowns:   what could not be judged, and how to know
    """

    model: Model
    profile: Profile
    mesh: Mesh
    dtype: str
    kv_dtype: str
    capability: Capability | None
    view: EngineView
    violations: tuple[Finding, ...]
    unknowns: tuple[Unknown, ...]

    def layers(self) -> tuple[PlannedLayer, ...]:
        """The engine's modules, fused as it fuses them, with their sizes per rank."""
        return self.view.layers

    def stages(self) -> tuple[int, ...]:
        """Layers of each pipeline stage."""
        return stage_sizes(self.model.config.layers, self.mesh.pp, self.mesh.partition)

    def ranks(self) -> tuple[RankSizes, ...]:
        """Bytes of every rank of one replica."""
        view, layers = self.view, self.model.config.layers
        disk = DiskSizes(view.params, self.mesh, layers, view.padding, view.tower_tp)
        weights = self.weights()
        found: list[RankSizes] = []
        for rank in self.mesh.ranks:
            read, draft = disk.of(rank)
            components, dtypes = weights.of(rank)
            cache = self.kv(rank)
            found.append(
                RankSizes(
                    rank=rank,
                    disk_bytes=sum(read.values()),
                    weight_bytes=sum(dtypes.values()),
                    kv_bytes_per_token=sum(kind.bytes_per_token for kind in cache),
                    kv_state_bytes_per_sequence=sum(kind.state_bytes for kind in cache),
                    by_component=components,
                    by_dtype=dtypes,
                    disk_by_component=read,
                    draft_bytes=draft,
                )
            )
        return tuple(found)

    def weights(self) -> WeightSizes:
        """Counts what the engine allocates for parameters, for one rank after the other."""
        layers = self.model.config.layers
        return WeightSizes(self.view, self.mesh, layers, dtype=self.dtype, capability=self.capability)

    def kv(self, rank: int) -> tuple[KVClass, ...]:
        """Memory of a rank by attention class."""
        config = self.model.config
        return kv_classes(
            self.model.architecture.attention(config),
            self.mesh,
            rank,
            config.layers,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            # The config's own word, which vLLM takes over (models/config.py:817, :956).
            ssm_dtype=torch_dtype(config.get("mamba_ssm_cache_dtype") or config.get("mamba_ssm_dtype")),
        )

    def segments(self, rank: int, *, draft: bool = False) -> Iterator[Segment]:
        """The boxes of source tensors that a rank holds, family by family, expanded as they are asked for.

        draft: also those of draft layers, which `disk_bytes` leaves out
        """
        for param in self.view.params:
            if not param.stored or (param.spec.draft and not draft):
                continue
            at = place(param, self.mesh, rank, self.model.config.layers, self.view.tower_tp)
            if at is not None:
                yield from segments(param, at, rank, self.view.padding)


def make_plan(
    model: Model,
    profile: Profile,
    mesh: Mesh,
    *,
    dtype: str = "auto",
    capability: Capability | None = None,
    kv_dtype: str = "auto",
    quantization: str | None = None,
) -> Plan:
    """Plans a model. Never fails because of the sizes: what does not fit is in `violations`.

    dtype, kv_dtype, quantization: as the engine was asked
    """

    def at(other: Mesh) -> Plan:
        view = EngineView.of(model, profile, other, quantization)
        return _plan(model, profile, other, dtype, capability, kv_dtype, view)

    plan = at(mesh)
    if all(finding.severity != "error" for finding in plan.violations):
        return plan
    hints = size_hints(mesh, lambda other: _sound(at(other)), model)
    return replace(
        plan,
        violations=tuple(
            replace(finding, hints=(*hints, *finding.hints)) if finding.severity == "error" else finding
            for finding in plan.violations
        ),
    )


def sizes_that_work(
    model: Model,
    profile: Profile,
    *,
    tp: Iterable[int] = TENSOR_SIZES,
    pp: Iterable[int] = STAGE_SIZES,
    dtype: str = "auto",
    capability: Capability | None = None,
) -> tuple[Mesh, ...]:
    """Meshes without an error, smallest first: tensor parallel with one stage, with and without expert
    parallelism, then the same with more stages."""
    return tuple(plan.mesh for plan in sound_plans(model, profile, tp=tp, pp=pp, dtype=dtype, capability=capability))


def sound_plans(
    model: Model,
    profile: Profile,
    *,
    tp: Iterable[int] = TENSOR_SIZES,
    pp: Iterable[int] = STAGE_SIZES,
    dp: int = 1,
    dtype: str = "auto",
    capability: Capability | None = None,
    kv_dtype: str = "auto",
    quantization: str | None = None,
) -> Iterator[Plan]:
    """The plans of `sizes_that_work`, one after the other."""
    routed = any(param.expert_total for param in model.params)
    for stages in pp:
        if stages > max(model.config.layers, 1):
            continue
        for size in tp:
            for ep in (False, True) if routed and size * dp > 1 else (False,):
                mesh = Mesh(tp=size, pp=stages, ep=ep, dp=dp)
                view = EngineView.of(model, profile, mesh, quantization)
                plan = _plan(model, profile, mesh, dtype, capability, kv_dtype, view)
                if _sound(plan):
                    yield plan


def on_gpu(plan: Plan, capability: Capability | None, *, dtype: str = "auto", kv_dtype: str = "auto") -> Plan:
    """The same plan for another GPU, without hints; dtype and kv_dtype as they were asked for."""
    return _plan(plan.model, plan.profile, plan.mesh, dtype, capability, kv_dtype, plan.view)


def _sound(plan: Plan) -> bool:
    return all(finding.severity != "error" for finding in plan.violations)


def _plan(
    model: Model,
    profile: Profile,
    mesh: Mesh,
    dtype: str,
    capability: Capability | None,
    kv_dtype: str,
    view: EngineView,
) -> Plan:
    resolved = resolve_dtype(
        model.dtype,
        dtype,
        profile.dtypes(capability),
        model.config.model_type in profile.value("float16_refused", ()),
        view.pooling,
    )
    return Plan(
        model=model,
        profile=profile,
        mesh=mesh,
        dtype=resolved,
        kv_dtype=_kv_dtype(model, resolved, kv_dtype),
        capability=capability,
        view=view,
        violations=violations(model, mesh, view, capability),
        unknowns=(*view.unknowns, *unknown_methods(view, capability)),
    )


def _kv_dtype(model: Model, dtype: str, asked: str) -> str:
    """ "auto" is the checkpoint's own KV scheme where it declares one of eight bits, else the model's dtype."""
    if asked != "auto":
        return KV_DTYPES.get(asked, dtype)
    kv = model.quant.kv if model.quant is not None else None
    return "F8_E4M3" if kv is not None and kv.bits == 8 else dtype
