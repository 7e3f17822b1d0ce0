"""The engine's own layers: families that it fuses into one module, with their sizes on a rank.

Kernel choice, alignment rules and the allocation of quantized parameters look at these, since an
engine asks its questions once per fused module and per rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mlload.plan.bound import BoundParam
from mlload.plan.cutting import allocated_length, parts_of, share
from mlload.plan.fold import fold_path
from mlload.plan.mesh import Mesh
from mlload.plan.params import ParamSpec, Part
from mlload.plan.placement import cut_size, is_expert
from mlload.profiles.layers import EngineLayer
from mlload.quant.spec import Scheme


@dataclass(frozen=True, slots=True)
class PlannedLayer:
    """One engine module in all the layers where it looks the same.

    shape:   its sizes on one rank (the fullest, for experts), as kernel choice asks for them
    path:    of the engine's module, with "{layer}"
    layers:  layer numbers, None outside the layers
    scheme:  how it is quantized, None for not at all; the first part's where `mixed`
    mixed:   fused parts have different schemes
    style:   how it is cut: "column", "row", "vocab", "replicated"
    params:  the families in it, in the order of fusing
    """

    shape: EngineLayer
    path: str
    layers: Sequence[int] | None
    scheme: Scheme | None
    mixed: bool
    style: str
    params: tuple[BoundParam, ...]

    @property
    def kind(self) -> str:
        return self.shape.kind

    @property
    def name(self) -> str:
        """The module's own name: "qkv_proj"."""
        return self.shape.name

    @property
    def label(self) -> str:
        """As vLLM's logs call it: "QKVParallelLinear[qkv_proj]"."""
        return f"{self.shape.kind}[{self.shape.name}]"

    @property
    def where(self) -> str:
        return fold_path(self.path, self.layers)

    @property
    def quantized(self) -> bool:
        """The engine asks its quantization config for a method for this layer."""
        return any(param.spec.quantized for param in self.params)

    @property
    def component(self) -> str:
        return self.params[0].component

    @property
    def tower(self) -> bool:
        return self.params[0].spec.mesh == "tower"


def planned_layers(
    params: Iterable[BoundParam],
    mesh: Mesh,
    *,
    vocab_padding: int = 64,
    tower_tp: bool = True,
    activation: str = "silu",
) -> tuple[PlannedLayer, ...]:
    """Every module that holds a linear, a table or experts, fused as the engine fuses them."""
    by_path: dict[str, list[BoundParam]] = {}
    for param in params:
        spec = param.spec
        # Some convolutions are linears to the engine, and some tables are no layers of its own.
        layer = spec.op in ("linear", "embedding", "experts") or spec.kind.endswith("ParallelLinear")
        if layer and spec.kind != "Embedding" and spec.engine and not spec.draft:
            by_path.setdefault(spec.engine, []).append(param)
    found: list[PlannedLayer] = []
    for path, members in by_path.items():
        for layers, together in _by_layers(members):
            spec = together[0].spec
            shape = (
                _experts(together, mesh, activation)
                if is_expert(spec)
                else _dense(together, cut_size(spec, mesh, tower_tp), vocab_padding)
            )
            schemes = {member.scheme for member in together if member.spec.quantized and not member.spec.engine_only}
            found.append(
                PlannedLayer(
                    shape=shape,
                    path=path,
                    layers=layers,
                    scheme=next((m.scheme for m in together if m.scheme is not None), None),
                    mixed=len(schemes) > 1,
                    style=spec.style,
                    params=together,
                )
            )
    return tuple(found)


def _by_layers(members: list[BoundParam]) -> list[tuple[Sequence[int] | None, tuple[BoundParam, ...]]]:
    """Members grouped by the layers that they are together in."""
    first = members[0].spec.layers
    if all(member.spec.layers == first for member in members):
        return [(first, tuple(members))]
    per_layer: dict[int, list[int]] = {}
    for index, member in enumerate(members):
        for layer in (-1,) if member.spec.layers is None else member.spec.layers:
            per_layer.setdefault(layer, []).append(index)
    groups: dict[tuple[int, ...], list[int]] = {}
    for layer, indexes in per_layer.items():
        groups.setdefault(tuple(indexes), []).append(layer)
    return [
        (None if layers == [-1] else tuple(sorted(layers)), tuple(members[i] for i in indexes))
        for indexes, layers in groups.items()
    ]


def _dense(members: tuple[BoundParam, ...], size: int, vocab_padding: int) -> EngineLayer:
    spec = members[0].spec
    parts = [part for member in _distinct(members) for part in _outputs(member.spec)]
    cut = size if spec.style in ("column", "vocab") else 1
    mine = tuple(share(part, cut, 0, vocab_padding).allocated for part in parts)
    biased = any(member.spec.bias is not None for member in members)
    return EngineLayer(
        kind=spec.kind,
        name=spec.engine.rpartition(".")[2],
        parts=mine,
        k=allocated_length(spec, size) if spec.style == "row" else spec.k,
        parts_full=tuple(part.length for part in parts),
        k_full=spec.k,
        tp=size,
        bias=sum(mine) if biased else 0,
    )


def _experts(members: tuple[BoundParam, ...], mesh: Mesh, activation: str) -> EngineLayer:
    """Routed experts: gate and up of one expert as parts, hidden size as K."""
    modules = _distinct(members)
    down = next((m.spec for m in modules if m.spec.style == "row"), None)
    up = [m.spec for m in modules if m.spec.style == "column"]
    size = 1 if mesh.ep else mesh.moe_size
    parts = [part for spec in up for part in _outputs(spec)]
    total = max(member.expert_total for member in members)
    ep = mesh.moe_size if mesh.ep else 1
    lead = up[0] if up else members[0].spec
    if not parts:  # an inferred model may keep one stack only
        parts = [Part("", down.k if down is not None else lead.n)]
    return EngineLayer(
        kind=lead.kind,
        name=lead.engine.rpartition(".")[2],
        parts=tuple(share(part, size, 0).allocated for part in parts),
        k=lead.k if up else (down.n if down is not None else lead.k),
        parts_full=tuple(part.length for part in parts),
        k_full=lead.k,
        tp=mesh.tp,
        bias=1 if lead.bias is not None else 0,
        experts=-(-total // ep),
        experts_all=total,
        ep=ep,
        dp=mesh.dp,
        activation=activation,
    )


def _distinct(members: Iterable[BoundParam]) -> list[BoundParam]:
    """One member per module: experts of different schemes are parts of one stack."""
    seen: dict[str, BoundParam] = {}
    for member in members:
        seen.setdefault(member.spec.module, member)
    return list(seen.values())


def _outputs(spec: ParamSpec) -> tuple[Part, ...]:
    """The fused outputs of one module. Rows have one; replicated layers may name several."""
    if spec.style == "row" or not spec.parts:
        return (Part("", spec.n),) if spec.style != "vocab" else parts_of(spec)
    return spec.parts
