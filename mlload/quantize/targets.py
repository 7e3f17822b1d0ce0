"""Which modules are quantized, which are left alone and why, and what cannot be done at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mlload.checkpoint.finding import MlloadError
from mlload.plan.bound import BoundParam
from mlload.plan.model import Model
from mlload.plan.params import ParamSpec
from mlload.quant.formats import plain_modules
from mlload.quant.spec import Scheme
from mlload.quantize.recipe import Recipe, matches

FLOATS = ("BF16", "F16", "F32")
MLP = ("mlp", "shared_expert", "experts")  # components whose inner width can be padded
QUANTIZED = "quantized already"
DRAFT = "a draft layer (multi-token prediction)"
UNCOUNTED = "of a layer beyond those that the config counts"
STRANGE = "no weight of the model class"
IGNORED = "left out by --ignore"
OVERRIDDEN = "left out by --override"
FUSED = "fused with a layer that is left out"


class Target(NamedTuple):
    """One linear that is quantized.

    path: on disk; weight: its tensor's name; n, k: of the whole model; dtype: of the stored weight
    fused: the engine's module that it becomes part of; those of one such module share scheme and global scales
    param: its family
    """

    path: str
    weight: str
    n: int
    k: int
    dtype: str
    scheme: Scheme
    fused: str
    param: BoundParam


class Plain(NamedTuple):
    """A linear that stays as it is, and why."""

    path: str
    reason: str
    param: BoundParam


class Beside(NamedTuple):
    """A tensor outside the model's own layers, kept byte by byte, and by which rule."""

    name: str
    rule: str


@dataclass(frozen=True, slots=True)
class Targets:
    """targets: in the order of the model; plain: linears left alone; beside: tensors of draft layers, of layers that
    the config does not count, and such as belong to no module of the class"""

    targets: tuple[Target, ...]
    plain: tuple[Plain, ...]
    beside: tuple[Beside, ...]


def find_targets(model: Model, recipe: Recipe) -> Targets:
    """Raises MlloadError where nothing is left to quantize, or a pattern names no layer."""
    _refuse_idle_patterns(model, recipe)
    targets: list[Target] = []
    plain: list[Plain] = []
    known: dict[str, bool] = {}
    for param in model.params:
        reason = _family_reason(param)
        for path in param.modules():
            known.update(dict.fromkeys((path + tensor.suffix for tensor in param.stored), param.spec.draft))
            if reason == "":
                continue
            scheme = recipe.scheme_for(path) if reason is None else None
            if scheme is None:
                plain.append(Plain(path, reason or (IGNORED if recipe.ignores(path) else OVERRIDDEN), param))
            else:
                n, k = param.spec.n, param.spec.k
                fused = _engine_path(param, path)
                weight = param.spec.tensor(path)
                targets.append(Target(path, weight, n, k, param.stored[0].dtype, scheme, fused, param))
    targets, widened = _whole_sets(targets, plain)
    if not targets:
        raise MlloadError(
            f"nothing is left to quantize: {_first_reason(plain)}", hint="mlload inspect shows the layers", exit_code=1
        )
    beside = tuple(
        Beside(name, DRAFT if name in known else _outside_rule(name, model.config.layers))
        for name in model.checkpoint.tensors
        if known.get(name, True)
    )
    return Targets(tuple(targets), (*plain, *widened), beside)


def _refuse_idle_patterns(model: Model, recipe: Recipe) -> None:
    """A pattern that is misspelt would leave its layers to what it was to keep from them. What is left alone anyway
    (the output head, say) may be named, so that one recipe does for many models."""
    patterns = [("--ignore", pattern) for pattern in recipe.ignore]
    patterns += [("--override", pattern) for pattern, _ in recipe.overrides]
    if not patterns:
        return
    paths = {path for param in model.params for path in param.modules()}
    paths |= {name.rpartition(".")[0] for name in model.checkpoint.tensors}
    for option, pattern in patterns:
        if not any(matches(pattern, path) for path in paths):
            inside = next((path for path in sorted(paths) if pattern.strip("*.") in path), None)
            raise MlloadError(
                f"{option} {pattern} names no layer: a glob is held against its whole path, or the end after a dot",
                hint=f"'*{pattern.strip('*')}*' matches {inside}"
                if inside is not None and not pattern.startswith("re:")
                else "mlload inspect shows the layers",
            )


def _outside_rule(name: str, layers: int) -> str:
    """Why a tensor that no family of the model has is kept."""
    number = next((int(part) for part in name.split(".") if part.isascii() and part.isdigit()), -1)
    return UNCOUNTED if number >= layers else STRANGE


def _first_reason(plain: list[Plain]) -> str:
    return f"{plain[0].path}: {plain[0].reason}" if plain else "the model has no linear layers"


def _family_reason(param: BoundParam) -> str | None:
    """None: may be quantized; "": no linear at all; else why it stays."""
    spec = param.spec
    if not param.stored or spec.op not in ("linear", "experts", "embedding"):
        return ""
    if spec.op == "embedding":
        return "the output head" if spec.quantized else ""
    if spec.draft:
        return DRAFT
    if plain_modules.left_plain(spec.module) or spec.component == "router":
        return "a router or a gate"
    if spec.mesh == "tower" or plain_modules.in_tower(spec.module):
        return "a vision or audio tower"
    if not spec.quantized:
        return "the engine has no quantized kernel for it"
    if param.scheme is not None:
        return QUANTIZED
    if spec.op == "experts":
        return "experts stacked in one tensor are left as they are"
    if spec.axes != ("N", "K"):
        return "stored transposed"
    if param.stored[0].dtype not in FLOATS:
        return f"{param.stored[0].dtype} weights"
    return None


def engine_paths(model: Model) -> dict[str, str]:
    """Of every module that is quantized on disk: the engine's module that it becomes part of."""
    quantized = (param for param in model.params if param.scheme is not None)
    return {path: _engine_path(param, path) for param in quantized for path in param.modules()}


def _engine_path(param: BoundParam, path: str) -> str:
    """The engine's module of one module of the family; experts are one by one."""
    return path.rpartition(".")[0] if param.spec.engine and param.spec.experts is not None else _engine_set(param, path)


def _engine_set(param: BoundParam, path: str) -> str:
    """The engine's module that has one scheme: for experts, all of a layer."""
    spec = param.spec
    if not spec.engine:
        return path
    if spec.layers is None:
        return spec.engine
    return spec.engine.replace("{layer}", _layer_in(spec, path))


def layer_module(spec: ParamSpec, path: str) -> str:
    """The family's module in the layer of one of its paths; an expert's number is left open."""
    return spec.module.replace("{layer}", _layer_in(spec, path))


def _layer_in(spec: ParamSpec, path: str) -> str:
    head = spec.module.partition("{layer}")[0]
    return path[len(head) :].partition(".")[0]


def _whole_sets(targets: list[Target], plain: list[Plain]) -> tuple[list[Target], list[Plain]]:
    """An engine has one scheme for the parts of a fused layer, and for all experts of a layer: where one part stays,
    all do; where schemes differ, the widest is everyone's."""
    left = {_engine_set(entry.param, entry.path) for entry in plain if entry.reason in (IGNORED, OVERRIDDEN)}
    schemes: dict[str, Scheme] = {}
    kept: list[Target] = []
    widened: list[Plain] = []
    for target in targets:
        whole = _engine_set(target.param, target.path)
        if whole in left:
            widened.append(Plain(target.path, FUSED, target.param))
            continue
        kept.append(target)
        known = schemes.get(whole)
        schemes[whole] = max(known, target.scheme, key=lambda s: s.bits) if known else target.scheme
    return [t._replace(scheme=schemes[_engine_set(t.param, t.path)]) for t in kept], widened


def refuse_misaligned(targets: Targets, tp_sizes: tuple[int, ...]) -> None:
    """Raises MlloadError for the first layer whose groups, words or blocks do not fit, with what would."""
    for target, problem in misfits(targets, tp_sizes):
        way = "; or --pad-intermediate auto" if _inner(target, problem) else ""
        raise MlloadError(f"{target.path}: {problem.text}", hint=problem.way + way)


def misfits(targets: Targets, tp_sizes: tuple[int, ...]) -> Iterator[tuple[Target, Misfit]]:
    """Every layer that does not fit at one of the sizes, and why."""
    parts: dict[str, int] = {}
    for target in targets.targets:
        parts[target.fused] = parts.get(target.fused, 0) + 1
    for target in targets.targets:
        for tp in (1, *tp_sizes):
            problem = next(_misfits(target, tp, fused=parts[target.fused] > 1), None)
            if problem is not None:
                yield target, problem
                break


def odd_inside(targets: Targets, tp_sizes: tuple[int, ...]) -> set[str]:
    """Families of MLPs whose inner width is what does not fit."""
    return {target.param.spec.module for target, problem in misfits(targets, tp_sizes) if _inner(target, problem)}


def _inner(target: Target, problem: Misfit) -> bool:
    spec = target.param.spec
    return spec.component in MLP and (spec.style, problem.axis) in (("row", "K"), ("column", "N"))


class Misfit(NamedTuple):
    """text: what does not divide; way: what would; axis: of which of the layer's axes it is"""

    text: str
    way: str
    axis: str


def _misfits(target: Target, tp: int, *, fused: bool) -> Iterator[Misfit]:
    spec, scheme = target.param.spec, target.scheme
    per_rank = "" if tp == 1 else f" per rank at tp {tp}"
    k, n = target.k, [target.n]
    if spec.style == "row":
        if k % tp:
            yield Misfit(f"{k} input channels do not divide by tp {tp}", "choose another --tp", "K")
            return
        k //= tp
    elif spec.style == "column" and tp > 1:
        n = []
        for part in spec.parts:
            count = part.length // part.unit
            ranks = tp if part.cut == "split" else 1 if part.cut == "replicate" else min(tp, count)
            if count % ranks:
                yield Misfit(f"{count} heads or units do not divide by tp {tp}", "choose another --tp", "N")
                return
            n.append(part.length // ranks)
    group = scheme.group_size if scheme.block is None and scheme.strategy != "channel" else None
    if scheme.block is not None:
        for length, whole, axis in (*((length, target.n, "N") for length in n), (k, target.k, "K")):
            # The last block of a whole axis may be short, but not that of a part which another follows.
            if length % scheme.block[0] and (length != whole or (fused and whole == target.n)):
                yield Misfit(
                    f"{length} channels{per_rank}, and {length} % {scheme.block[0]} = {length % scheme.block[0]}: "
                    f"blocks of {scheme.block[0]} would straddle ranks or parts",
                    "--method fp8 --scheme FP8 has one scale a row",
                    axis,
                )
    if group and group > 0 and k % group:
        finer = [size for size in (128, 64, 32) if size < group and k % size == 0]
        way = f"--group-size {finer[0]} fits" if finer and scheme.kind == "int" else "--group-size -1 always fits"
        if scheme.kind != "int":
            way = "this scheme's groups are fixed: leave the layer out with --ignore"
        yield Misfit(f"{k} input channels{per_rank}, and {k} % {group} = {k % group}", way, "K")
    if scheme.format == "awq":
        for length in n:
            if length % 8:
                yield Misfit(
                    f"{length} output channels{per_rank}, and {length} % 8 = {length % 8}: a word of AWQ holds 8",
                    "--save-as compressed-tensors packs along the inputs",
                    "N",
                )
    elif scheme.format == "gptq" and (target.n * scheme.bits) % 32:
        yield Misfit(
            f"{target.n} output channels do not fill whole words of zero points", "--save-as compressed-tensors", "N"
        )
