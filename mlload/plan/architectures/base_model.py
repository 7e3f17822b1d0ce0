"""Decoders saved without their output head, under their base class ("Qwen3Model"): embedding models, mostly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.params import ParamSpec

ROOT = "model."


def is_base_class(name: str) -> bool:
    """Whether this class of transformers is a decoder without a head."""
    return name.endswith("Model") and not name.endswith(("LMHeadModel", "ChatGLMModel"))


def as_base_model(architecture: Architecture) -> Architecture:
    """The same decoder as its base class saves it: no head, no "model." before the names. The engine keeps its own
    names, and takes files with the longer ones too."""

    def build(c: ConfigView) -> Iterator[ParamSpec]:
        for spec in architecture.params(c):
            if spec.component == "head":
                continue
            yield replace(
                spec,
                module=spec.module.removeprefix(ROOT),
                wiring=spec.wiring and spec.wiring.removeprefix(ROOT),
                stage="first" if spec.component == "embedding" else spec.stage,
            )

    return replace(architecture, build=build, alternates=((ROOT, ""),))
