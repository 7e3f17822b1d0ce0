"""The model as one engine sees it: what it cuts and pads, and which quantization it does not notice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mlload.plan.bound import BoundParam
from mlload.plan.engine_layers import PlannedLayer, planned_layers
from mlload.plan.mesh import Mesh
from mlload.plan.model import Model
from mlload.plan.sizes import Allocation
from mlload.plan.unknowns import Unknown
from mlload.profiles import Profile


@dataclass(frozen=True, slots=True)
class EngineView:
    """params:   the model's families, with no scheme where the engine overlooks the quantization
    layers:      the engine's fused modules
    class_name:  the engine's model class, None where it has none of that name
    class_facts: what the profile says of it ("pp", "kind", ...)
    padding:     rows that a vocabulary is padded up to
    tower_tp:    towers are cut like the text model
    pooling:     the class embeds or classifies instead of generating
    sees_quantization: False where the files are quantized and the engine will not know it
    """

    params: tuple[BoundParam, ...]
    layers: tuple[PlannedLayer, ...]
    class_name: str | None
    class_facts: dict[str, Any]
    padding: int
    tower_tp: bool
    pooling: bool
    sees_quantization: bool
    unknowns: tuple[Unknown, ...]
    profile: Profile

    @staticmethod
    def of(model: Model, profile: Profile, mesh: Mesh) -> EngineView:
        classes = profile.architectures
        name = next((c for c in model.config.architectures if c in classes), None)
        facts = classes.get(name or "", {})
        padding = profile.vocab_padding
        tower_tp = profile.tower_mode == "weights"
        seen = sees_quantization(model, profile)
        params = model.params if seen else tuple(replace(param, scheme=None) for param in model.params)
        activation = str(model.config.get("hidden_act") or "silu")
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
            unknowns=tuple(unknowns),
            profile=profile,
        )

    def allocation(self, dtype: str, capability: tuple[int, int] | None) -> Allocation:
        """What the engine allocates for a quantized module (for one expert, where there are experts)."""
        from mlload.plan.allocation import quantized_bytes

        return lambda layer: quantized_bytes(layer, self.profile, dtype, capability)


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
    return quant.declared_in == "hf_quant_config.json"
