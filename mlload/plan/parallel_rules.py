"""Rules on tensor-, pipeline- and expert-parallel sizes that hold whatever the quantization is."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.finding import Finding, Hint
from mlload.plan.bound import BoundParam
from mlload.plan.cutting import ceil_to, parts_of
from mlload.plan.engine_view import EngineView
from mlload.plan.fold import fold_path
from mlload.plan.mesh import Mesh
from mlload.plan.model import Model
from mlload.plan.params import Part
from mlload.plan.placement import cut_size, is_expert
from mlload.plan.rule_findings import found, remainder


def parallel_findings(model: Model, mesh: Mesh, view: EngineView) -> Iterator[Finding]:
    """All of them, those of the whole model first."""
    heads = model.config.heads
    if heads and heads % mesh.tp:
        yield found(
            "TP001",
            "attention",
            f"{heads} attention heads do not divide by tp {mesh.tp}: {remainder(heads, mesh.tp)}",
            {"heads": heads, "tp": mesh.tp},
        )
    if mesh.ep and not any(param.expert_total for param in view.params):
        yield found("TP015", "model", "expert parallelism was asked for, and the model has no experts", {"experts": 0})
    yield from _cut_findings(view, mesh, heads)


def _cut_findings(view: EngineView, mesh: Mesh, heads: int) -> Iterator[Finding]:
    """Every part of every family that its ranks cannot divide, once per engine module and size."""
    seen: set[tuple[str, str, int, int]] = set()
    for param in view.params:
        spec = param.spec
        if spec.draft or not spec.engine or spec.engine_only or param.alias:
            continue
        size = cut_size(spec, mesh, view.tower_tp)
        if size == 1:
            continue
        for part in parts_of(spec):
            finding = _part_finding(param, part, size, view, heads)
            if finding is None:
                continue
            key = (finding.code, spec.engine, part.length // part.unit, size)
            if key not in seen:
                seen.add(key)
                yield finding


def _part_finding(param: BoundParam, part: Part, size: int, view: EngineView, heads: int) -> Finding | None:
    spec = param.spec
    where = fold_path(spec.engine, spec.layers)
    if part.cut == "replicate":
        return None
    if part.cut == "vocab":
        padded = ceil_to(part.length, view.padding)
        if padded % size == 0:
            return None
        message = f"a table of {part.length} rows is padded to {padded}, a multiple of {view.padding}"
        return found(
            "TP005",
            where,
            f"{message}, which does not divide by tp {size}: {remainder(padded, size)}",
            {"rows": part.length, "padded": padded, "tp": size},
        )
    count = part.length // part.unit
    if part.cut == "kv":
        return _kv_finding(param, part, count, size, where, view)
    if part.unit == 1:
        return _width_finding(param, part, size, where, view) if part.length % size else None
    if count % size == 0 or (count == heads and param.component == "attention"):
        # The query heads of the whole model are one finding, TP001.
        return None
    return _unit_finding(param, part, count, size, where, view)


def _kv_finding(param: BoundParam, part: Part, count: int, size: int, where: str, view: EngineView) -> Finding | None:
    if size > count and "kv_heads_not_shared" in view.class_facts:
        return found(
            "TP016",
            where,
            f"{size} ranks share {count} KV heads, and {view.class_name} keeps none on a rank then: "
            f"{count} // {size} = 0",
            {"kv_heads": count, "tp": size},
            layers=param.spec.layers,
        )
    code = "TP010" if param.component == "mixer" else "TP002"
    what = "groups" if code == "TP010" else "KV heads"
    if size <= count and count % size:
        message = f"{count} {what} do not divide by tp {size}: {remainder(count, size)}"
    elif size > count and (not count or size % count):
        rest = f": {remainder(size, count)}" if count else ""
        message = f"{count} {what} cannot be shared evenly by {size} ranks{rest}"
    else:
        return None
    return found(code, where, message, {"kv_heads": count, "tp": size}, layers=param.spec.layers)


def _width_finding(param: BoundParam, part: Part, size: int, where: str, view: EngineView) -> Finding:
    spec = param.spec
    numbers = {"width": part.length, "tp": size}
    rest = remainder(part.length, size)
    if is_expert(spec):
        return found(
            "TP006",
            where,
            f"an expert is {part.length} wide, which does not divide by {size} ranks: {rest}",
            numbers,
            layers=spec.layers,
            hints=(Hint("keep experts whole: each rank then holds some of them", "--enable-expert-parallel"),),
        )
    role = f"{part.role} " if part.role else ""
    if spec.mesh == "tower":
        message = f"{role or 'layer '}of the {param.component} tower is {part.length} wide: {rest}"
        return found("TP009", where, message, numbers, layers=spec.layers, hints=_tower_hint(view))
    if param.component == "mixer":
        code, side = "TP010", "channels"
    elif param.component == "shared_expert":
        code, side = "TP007", "channels of the shared expert"
    elif spec.style == "row":
        code, side = "TP004", "input channels"
    else:
        code, side = "TP003", "output channels"
    message = f"{part.length} {role}{side} do not divide by tp {size}: {rest}"
    return found(code, where, message, numbers, layers=spec.layers)


def _unit_finding(param: BoundParam, part: Part, count: int, size: int, where: str, view: EngineView) -> Finding:
    spec = param.spec
    rest = remainder(count, size)
    numbers = {"heads": count, "tp": size}
    if spec.mesh == "tower":
        message = f"{count} heads of the {param.component} tower do not divide by tp {size}: {rest}"
        return found("TP008", where, message, numbers, layers=spec.layers, hints=_tower_hint(view))
    role = f" of {part.role}" if part.role else ""
    code = "TP010" if param.component == "mixer" else "TP001"
    message = f"{count} heads or groups{role} do not divide by tp {size}: {rest}"
    return found(code, where, message, numbers, layers=spec.layers)


def _tower_hint(view: EngineView) -> tuple[Hint, ...]:
    if not view.class_facts.get("encoder_tp_data"):
        return ()
    return (Hint("hold the whole tower on every rank", "--mm-encoder-tp-mode data"),)
