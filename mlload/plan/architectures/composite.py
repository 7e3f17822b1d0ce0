"""Models made of models: a language model under a prefix, towers with sizes and a mesh of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Attention, Params
from mlload.plan.architectures.attention import AttentionSpec
from mlload.plan.params import ParamSpec

# (old prefix, new prefix), the first that fits is applied.
Prefixes = tuple[tuple[str, str], ...]

# transformers since v5, as Qwen saves: the head stays outside.
IN_MODEL: Prefixes = (("model.", "model.language_model."),)
# LLaVA's way: the whole language model, head included, is one module.
WHOLE: Prefixes = (("", "language_model."),)
AS_IS: Prefixes = ()


def renamed(name: str, prefixes: Prefixes) -> str:
    for old, new in prefixes:
        if name.startswith(old):
            return new + name[len(old) :]
    return name


def moved(specs: Iterable[ParamSpec], disk: Prefixes, engine: Prefixes = WHOLE, **fields: Any) -> Iterator[ParamSpec]:
    """The same modules under other prefixes, on disk and in the engine."""
    for spec in specs:
        yield replace(
            spec,
            module=renamed(spec.module, disk),
            engine=renamed(spec.engine, engine) if spec.engine else "",
            alias_of=renamed(spec.alias_of, disk) if spec.alias_of else None,
            wiring=renamed(spec.wiring, disk) if spec.wiring else None,
            **fields,
        )


def on_every_stage(specs: Iterable[ParamSpec], *components: str) -> Iterator[ParamSpec]:
    """Modules outside the layers that the engine's class builds on every pipeline stage, needed there or not."""
    for spec in specs:
        yield replace(spec, stage="all") if spec.layers is None and spec.component in components else spec


def tower(specs: Iterable[ParamSpec], component: str = "vision") -> Iterator[ParamSpec]:
    """Modules of an encoder: on a mesh of their own, on the first pipeline stage."""
    for spec in specs:
        found = component if spec.component not in ("projector", "audio", "vision") else spec.component
        yield replace(spec, mesh="tower", stage="first", component=found)


def language(c: ConfigView) -> tuple[Params, Attention]:
    """Modules and memory of the language model inside a composite config, as its own type has them."""
    from mlload.plan.architectures import find

    found = find(c, text=True)
    if found is None or found.nested:
        return (lambda _: ()), (lambda _: ())
    return found.build, found.attend


def memory_of_language(c: ConfigView) -> tuple[AttentionSpec, ...]:
    return language(c)[1](c)


def nested(raw: Any, model_type: str) -> ConfigView:
    """A nested model's view under the type that its class really has: published configs often repeat the outer type
    there, and its defaults are other sizes."""
    return ConfigView({**(raw if isinstance(raw, dict) else {}), "model_type": model_type})
