"""The model as one engine sees it: what it cuts and pads, and which quantization it does not notice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mlload.plan.bound import BoundParam
from mlload.plan.engine_layers import PlannedLayer, planned_layers
from mlload.plan.engine_method import engine_method
from mlload.plan.mesh import Mesh
from mlload.plan.model import Model
from mlload.plan.unknowns import Unknown
from mlload.profiles import Profile


@dataclass(frozen=True, slots=True)
class EngineView:
    """params:   the model's families on the stages where the engine builds them, with no scheme where it overlooks
                 the quantization
    layers:      the engine's fused modules
    class_name:  the engine's model class, None where it has none of that name
    class_facts: what the profile says of it ("pp", "kind", ...)
    padding:     rows that a vocabulary is padded up to
    tower_tp:    towers are cut like the text model
    pooling:     the class embeds or classifies instead of generating
    sees_quantization: False where the files are quantized and the engine will not know it
    method:      the engine's quantization method ("auto_awq"), None where it sees none
    attention_layers: layers that keep keys and values
    mla:         they keep one latent vector instead
    """

    params: tuple[BoundParam, ...]
    layers: tuple[PlannedLayer, ...]
    class_name: str | None
    class_facts: dict[str, Any]
    padding: int
    tower_tp: bool
    pooling: bool
    sees_quantization: bool
    method: str | None
    attention_layers: tuple[int, ...]
    unknowns: tuple[Unknown, ...]
    profile: Profile
    mla: bool = False

    @staticmethod
    def of(model: Model, profile: Profile, mesh: Mesh, quantization: str | None = None) -> EngineView:
        """quantization: the method that the engine is told to use, which then reads side files too"""
        classes = profile.architectures
        name = next((c for c in model.config.architectures if c in classes), None)
        facts = classes.get(name or "", {})
        padding = profile.vocab_padding
        tower_tp = profile.tower_mode == "weights" and not (
            "tower_replicates" in facts and _tower_heads_remain(model, mesh)
        )
        seen = quantization is not None or sees_quantization(model, profile)
        everywhere = facts.get("every_stage", {})
        method = None
        if model.quant is not None and seen and profile.engine == "vllm":
            method = engine_method(model.quant, model.config)
        plain_tower = profile.value("quant_methods", {}).get(method, {}).get("config") in facts.get("tower_ignores", ())
        params = tuple(
            _as_built(param, everywhere, seen and not (plain_tower and param.spec.mesh == "tower"), method)
            for param in model.params
            if not (param.spec.engine_only and profile.engine == "native")  # parameters of vLLM's own classes
        )
        unknowns: list[Unknown] = []
        if model.inferred:
            unknowns.append(
                Unknown(
                    "which weights the model class expects, and how it cuts them",
                    f"the model type {model.config.model_type!r} is not in the tables; tensor names were the guide",
                    "start the engine with load_format dummy at the size in question",
                )
            )
        return EngineView(
            params=params,
            layers=planned_layers(
                params,
                mesh,
                vocab_padding=padding,
                tower_tp=tower_tp,
                activation=str(model.config.get("hidden_act") or "silu"),
            ),
            class_name=name,
            class_facts=facts,
            padding=padding,
            tower_tp=tower_tp,
            pooling=facts.get("kind") == "embedding",
            sees_quantization=seen,
            method=method,
            attention_layers=_attention_layers(model),
            unknowns=tuple(unknowns),
            profile=profile,
            mla=any(group.kind == "mla" for group in model.architecture.attention(model.config)),
        )


def _tower_heads_remain(model: Model, mesh: Mesh) -> bool:
    """Whether the heads of a tower do not divide by the ranks."""
    parts = (part for p in model.params if p.spec.mesh == "tower" for part in p.spec.parts if part.unit > 1)
    return any(part.length // part.unit % mesh.tp for part in parts)


def _attention_layers(model: Model) -> tuple[int, ...]:
    groups = model.architecture.attention(model.config)
    return tuple(layer for group in groups if group.kind not in ("linear", "ssm", "none") for layer in group.layers)


def _as_built(param: BoundParam, everywhere: dict[str, str], sees: bool, method: str | None) -> BoundParam:
    """A family as the engine builds it: some classes build tables, last norm or head on every stage, and some modules
    are cut under some quantization methods only."""
    spec = param.spec
    if method is not None and method in spec.whole_under:
        spec = replace(spec, style="replicated", parts=(), groups=1)
        param = replace(param, spec=spec)
    if spec.mesh == "text" and spec.stage in ("first", "last", "ends") and not spec.draft:
        if spec.component == "head":
            role = "head"
        else:
            role = "norm" if spec.component == "norm" and spec.stage == "last" else "embedding"
        if role in everywhere:
            param = replace(param, spec=replace(spec, stage="all"))
    return param if sees or param.scheme is None else replace(param, scheme=None)


def sees_quantization(model: Model, profile: Profile) -> bool:
    """Whether the engine notices that the files are quantized.

    vLLM reads config.json's `quantization_config` (or, without one, hf_quant_config.json) and in
    it `quant_method`, or ModelOpt's nested `quantization.quant_algo`. A quantize_config.json alone,
    or a block without either key, is not noticed: the model is built in 16 bits.
    """
    quant = model.quant
    if quant is None or profile.engine != "vllm":
        return True
    if quant.declared_in in ("config.json", "text_config", ""):
        nested = quant.config.get("quantization")
        declared = quant.config.get("quant_method") or (isinstance(nested, dict) and nested.get("quant_algo"))
        return quant.declared_in == "" or bool(declared)
    return quant.declared_in in ("hf_quant_config.json", "assumed")
