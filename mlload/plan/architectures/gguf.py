"""The tables' modules as a GGUF file stores them: under other names, and with all experts in one tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mlload.checkpoint.config import ConfigView
from mlload.checkpoint.gguf_names import gguf_module
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.blocks import param
from mlload.plan.params import ParamSpec

# Model types whose converter in llama.cpp (LlamaModel.permute and what inherits it) orders the rows of q and k
# for rotary pairs that lie side by side.
PAIRED_ROPE = frozenset({"llama", "mistral", "mixtral", "granite", "granitemoe", "smollm3", "arcee", "minicpm"})


def as_gguf(architecture: Architecture) -> Architecture:
    """The same model class, whose `module`s are GGUF's names; `engine` stays."""

    def build(c: ConfigView) -> Iterator[ParamSpec]:
        for spec in architecture.params(c):
            yield stored(spec, architecture.model_type)
        for name in ("rope_freqs", "rope_factors_long", "rope_factors_short"):
            yield param(f"{name}.weight", (c.head_dim // 2,), engine="", optional=True, stage="first")

    return replace(architecture, build=build, alternates=(), variants=())


def stored(spec: ParamSpec, model_type: str) -> ParamSpec:
    """One module as GGUF stores it. What GGUF has no name for keeps its own, and will be found missing."""
    spec = replace(
        spec,
        module=gguf_module(spec.module, model_type) or spec.module,
        alias_of=spec.alias_of and (gguf_module(spec.alias_of, model_type) or spec.alias_of),
        wiring=spec.wiring and (gguf_module(spec.wiring, model_type) or spec.wiring),
    )
    if (
        model_type in PAIRED_ROPE
        and spec.component == "attention"
        and [part.role for part in spec.parts] in (["q"], ["k"])
    ):
        spec = replace(spec, transforms=(f"unpair_rope:{spec.parts[0].unit}",))
    if spec.experts is None:
        return spec
    return replace(
        spec, op="experts", shape=(spec.experts, *spec.shape), axes=("E", *spec.axes), experts=None, bias=None
    )
