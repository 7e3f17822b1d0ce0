"""`--pad-intermediate auto`: MLPs made wider by zeros until groups and tensor parallelism divide them.

A channel whose gate and up rows are zero gives activation(0) * 0, and its column of the down projection is zero: what
the MLP computes is unchanged, exactly. Which field of the config is meant is found by asking the architecture what it
would expect with another value.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm
from typing import Any

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.config import ConfigView
from mlload.checkpoint.finding import MlloadError
from mlload.plan.architectures.choice import choose
from mlload.plan.model import Model, read_model
from mlload.plan.params import ParamSpec
from mlload.quant.formats import spec as stored_spec
from mlload.quant.formats.tensors import unit
from mlload.quantize.padded_source import Padded, Run, padded_checkpoint
from mlload.quantize.recipe import Recipe
from mlload.quantize.targets import MLP, Targets, find_targets, odd_inside

FIELDS = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "d_ff", "hidden_dim")


@dataclass(frozen=True, slots=True)
class Padding:
    """fields: (of the config, before, after); checkpoint, model: as if the padded weights lay on disk"""

    fields: tuple[tuple[str, int, int], ...]
    checkpoint: Checkpoint
    model: Model

    @property
    def text(self) -> str:
        return ", ".join(f"{field} {before} -> {after}" for field, before, after in self.fields)


def pad_intermediate(model: Model, recipe: Recipe, tp_sizes: tuple[int, ...]) -> Padding | None:
    """None where everything divides already. Raises MlloadError where a width cannot be padded."""
    source = model.checkpoint
    targets = find_targets(model, recipe)
    odd = odd_inside(targets, tp_sizes)
    config = copy.deepcopy(source.config)
    scope = ConfigView(config).text
    step = _step(targets, tp_sizes)
    fields: list[tuple[str, int, int]] = []
    for field in _candidates(scope):
        before = scope[field]
        scope[field] = before + step
        grown = _grown(source, config)
        scope[field] = before
        if not odd & grown.keys():
            continue
        scope[field] = -(-before // step) * step
        if scope[field] != before:
            _refuse_what_zeros_change(model, _grown(source, config), field)
            fields.append((field, before, scope[field]))
    if not fields:
        return None
    grown = _grown(source, config)
    tensors = dict(_tensors(model, grown))
    padded = padded_checkpoint(source, config, tensors, "; ".join(map(str, fields)))
    made = read_model(padded)
    wrong = [f for f in made.findings if f.severity == "error"]
    if wrong:
        raise MlloadError(f"padded weights do not fit the model class: {wrong[0].where}: {wrong[0].message}")
    return Padding(tuple(fields), padded, made)


def _candidates(scope: dict[str, Any]) -> list[str]:
    """Fields that may be an MLP's width."""
    names = [name for name in scope if name.endswith(FIELDS)]
    return [name for name in names if isinstance(scope[name], int) and not isinstance(scope[name], bool)]


def _step(targets: Targets, tp_sizes: tuple[int, ...]) -> int:
    """Widths that are a multiple of this divide by every size, and each part by the units of every scheme."""
    found = 1
    for scheme in {target.scheme for target in targets.targets if target.param.spec.component in MLP}:
        specs = stored_spec(scheme, 1 << 20, 1 << 20)
        found = lcm(found, max(1, unit(specs, "K")), max(1, unit(specs, "N")))
    return found * lcm(1, *tp_sizes)


def _grown(source: Checkpoint, config: dict[str, Any]) -> dict[str, tuple[ParamSpec, ParamSpec]]:
    """Families whose shape another config changes, by module: before and after."""
    view, architecture = choose(source)
    before = {spec.module: spec for spec in architecture.params(view)}
    after = {spec.module: spec for spec in architecture.params(ConfigView(config))}
    return {
        module: (spec, after[module])
        for module, spec in before.items()
        if module in after and after[module].shape != spec.shape
    }


def _refuse_what_zeros_change(model: Model, grown: dict[str, tuple[ParamSpec, ParamSpec]], field: str) -> None:
    for module, (spec, _) in grown.items():
        if spec.component not in MLP or spec.op not in ("linear", "experts"):
            raise MlloadError(
                f"{field} cannot be padded: {module} depends on it, too, and zeros would change what that computes",
                hint="--group-size 32 or -1, or another --tp",
                exit_code=1,
            )
    for param in model.params:
        if param.spec.module in grown and param.scheme is not None:
            raise MlloadError(f"{field} cannot be padded: {param.spec.module} is quantized already", exit_code=1)


def _tensors(model: Model, grown: dict[str, tuple[ParamSpec, ParamSpec]]) -> Iterator[tuple[str, Padded]]:
    """Every tensor that changes: its new shape, and what of it comes from where, along its last two dims."""
    for param in model.params:
        if param.spec.module not in grown or not param.stored:
            continue
        old, new = grown[param.spec.module]
        runs: list[tuple[Run, ...]] = [
            _runs(old, new, axis) if before != after else (Run(0, 0, before),)
            for axis, before, after in zip(old.axes, old.shape, new.shape, strict=True)
        ]
        weight = Padded(new.shape, runs[-2] if len(runs) > 1 else (Run(0, 0, 1),), runs[-1])
        rows = runs[new.axes.index("N")]
        bias = Padded(new.bias_shape, (Run(0, 0, old.bias_shape[0] if "E" in old.axes else 1),), rows)
        for module in param.modules():
            for stored in param.stored:
                name = module + stored.suffix
                if stored.role != "bias":
                    yield name, weight
                elif old.n != new.n:
                    yield name, bias


def _runs(old: ParamSpec, new: ParamSpec, axis: str) -> tuple[Run, ...]:
    """The parts of an axis (gate and up in one tensor), each padded at its end."""
    along = (axis == "N") == (old.style == "column")
    before, after = getattr(old, axis.lower()), getattr(new, axis.lower())
    if not along or len(old.parts) < 2 or old.groups != new.groups:
        # Also where rows of gate and up take turns: a pair more at the end.
        return (Run(0, 0, min(before, after)),)
    found, source, place = [], 0, 0
    for _ in range(old.groups):
        for part, wider in zip(old.parts, new.parts, strict=True):
            length, room = part.length // old.groups, wider.length // new.groups
            found.append(Run(source, place, length))
            source, place = source + length, place + room
    return tuple(found)


def prove_equal(before: Model, after: Model, tokens: int = 16) -> str:
    """What a comparison of logits found; Raises MlloadError where they differ. Zeros add nothing, but a longer sum may
    be rounded in another order: hence a bound and not equality."""
    import torch

    from mlload.engine.calibrate_quality import final
    from mlload.engine.layerwise import Layerwise
    from mlload.quantize.source import SourceTensors

    vocabulary = max(2, before.config.vocab)
    ids = torch.randint(1, vocabulary, (1, tokens), generator=torch.Generator().manual_seed(0))
    found = []
    try:
        for model in (before, after):
            reader = SourceTensors(model.checkpoint)
            runner = Layerwise(model, reader.tensor, list(model.checkpoint.tensors))
            found.append(torch.cat(list(runner.logits(ids, final(runner, ids)))).double())
    except MlloadError as error:
        if error.exit_code != 3:
            raise
        return f"logits were not compared: {error.message}"
    size = float(found[0].norm())
    lost = float((found[1] - found[0]).norm()) / size if size else float(found[1].norm())
    if not lost <= 1e-5:
        raise MlloadError(f"padding changed the logits by {lost:.1e} of their norm; nothing was written", exit_code=1)
    return f"the logits of {tokens} tokens are equal within {lost:.0e} of their norm"
