"""The transformers class of a config, on the meta device."""

from __future__ import annotations

from typing import Any

import torch

from mlload.checkpoint.finding import MlloadError
from mlload.plan.model import Model
from mlload.plan.plan import Plan


def meta_model(plan: Plan, dtype: torch.dtype) -> Any:
    """The class of a plan's model, towers included where it has some."""
    towers = any(param.spec.mesh == "tower" for param in plan.model.params)
    return class_of(plan.model, dtype, composite=towers)


def class_of(model: Model, dtype: torch.dtype, hint: str | None = None, *, composite: bool = False) -> Any:
    """The class on the meta device: the causal language model of the config, or (composite) the class that has its
    towers too. Raises MlloadError, with `hint`, where transformers has none for this config."""
    import transformers
    from huggingface_hub.errors import StrictDataclassError

    dropped = ("quantization_config", "auto_map")
    raw = {k: _decoded(v) for k, v in model.config.raw.items() if k not in dropped}
    model_type = str(raw.pop("model_type", "") or model.config.model_type)
    build: Any = transformers.AutoModelForCausalLM.from_config
    try:
        config = transformers.AutoConfig.for_model(model_type, **raw)
        if composite:
            build = _composite(config)
        config._experts_implementation = "eager"
        with torch.device("meta"):
            made = build(config, dtype=dtype, attn_implementation="sdpa")
    except (ValueError, KeyError, TypeError, StrictDataclassError) as error:
        if "scaled_dot_product" in str(error):
            with torch.device("meta"):
                made = build(config, dtype=dtype, attn_implementation="eager")
        else:
            line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            line = line.partition(". Should contain one of")[0]  # hundreds of names follow
            raise MlloadError(
                f"transformers {transformers.__version__} builds no causal language model of type "
                f"{model_type!r}: {line}",
                hint=hint,
                exit_code=3,
            ) from error
    return made.eval()


def _composite(config: Any) -> Any:
    """How the class with towers is made: by what the class is for, in the order of transformers' own tables."""
    import transformers
    from transformers.models.auto import modeling_auto

    for table, auto in (
        ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING", transformers.AutoModelForImageTextToText),
        ("MODEL_FOR_MULTIMODAL_LM_MAPPING", getattr(transformers, "AutoModelForMultimodalLM", None)),
        ("MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING", transformers.AutoModelForSpeechSeq2Seq),
    ):
        if auto is not None and type(config) in getattr(modeling_auto, table, {}):
            return auto.from_config
    return transformers.AutoModelForCausalLM.from_config


def _decoded(value: Any) -> Any:
    """transformers writes floats that JSON has no form for as {"__float__": "Infinity"}."""
    if isinstance(value, dict):
        return float(value["__float__"]) if set(value) == {"__float__"} else {k: _decoded(v) for k, v in value.items()}
    return [_decoded(one) for one in value] if isinstance(value, list) else value
