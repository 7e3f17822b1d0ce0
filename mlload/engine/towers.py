"""Vision and audio towers beside a language model: left out, loaded with it, or loaded when they are first called.

Their weights come through the same plan and the same loaders; engines hold them whole on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from torch import nn

from mlload.checkpoint.finding import MlloadError
from mlload.engine.names import Names
from mlload.plan.plan import Plan

# Settings.towers
WITH, WITHOUT, LAZY = "load", "skip", "lazy"


def has_towers(plan: Plan) -> bool:
    return any(param.spec.mesh == "tower" for param in plan.model.params)


def without_towers(plan: Plan) -> Plan:
    """The same plan for the language model alone: sizes and segments too."""
    return _narrowed(plan, towers=False)


def towers_only(plan: Plan) -> Plan:
    """The rest of it."""
    return _narrowed(plan, towers=True)


def _narrowed(plan: Plan, *, towers: bool) -> Plan:
    view = plan.view
    params = tuple(param for param in view.params if (param.spec.mesh == "tower") is towers)
    engines = {param.spec.engine for param in params}
    layers = tuple(layer for layer in view.layers if layer.path in engines)
    return replace(plan, view=replace(view, params=params, layers=layers))


def tower_parameters(names: Names, plan: Plan) -> set[str]:
    """The class's parameters that belong to towers, by the model of a plan, whether or not the plan has them."""
    found = {
        names.parameter(path + tensor.suffix) or names.parameter(f"{path}.weight")
        for param in plan.model.params
        if param.spec.mesh == "tower"
        for path in param.modules()
        for tensor in param.stored
    }
    return {name for name in found if name is not None}


def tower_modules(model: nn.Module, theirs: set[str]) -> list[str]:
    """Paths of the outermost modules whose parameters are all among `theirs`."""
    found: list[str] = []
    for path, module in model.named_modules():
        own = {f"{path}.{name}" for name, _ in module.named_parameters()}
        if path and own and own <= theirs and not any(path.startswith(f"{one}.") for one in found):
            found.append(path)
    return found


class AbsentTower(nn.Module):
    """Stands where a tower was left out. wake: builds and loads all towers, in place; None where they stay out."""

    def __init__(self, model: nn.Module, path: str, wake: Callable[[], object] | None) -> None:
        super().__init__()
        self.path = path
        # In tuples, so that neither is a module of this one.
        self.model, self.original = (model,), (model.get_submodule(path),)
        self.wake = wake

    def __getattr__(self, name: str) -> Any:
        """What classes ask of a tower beside calling it (its dtype, its config)."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["original"][0], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.wake is None:
            raise MlloadError(f"{self.path} was left out: --language-only loads the language model alone")
        self.wake()
        return self.model[0].get_submodule(self.path)(*args, **kwargs)


def take_out(model: nn.Module, paths: Iterable[str], wake: Callable[[], object] | None) -> None:
    for path in paths:
        model.set_submodule(path, AbsentTower(model, path, wake))


def put_back(model: nn.Module) -> None:
    """The towers themselves again, still without weights."""
    absent = [module for module in model.modules() if isinstance(module, AbsentTower)]
    for module in absent:
        model.set_submodule(module.path, module.original[0])
