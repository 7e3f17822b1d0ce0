"""The transformers class of a config, on the meta device."""

from __future__ import annotations

from typing import Any

import torch

from mlload.checkpoint.finding import MlloadError
from mlload.plan.model import Model
from mlload.plan.plan import Plan


def meta_model(plan: Plan, dtype: torch.dtype) -> Any:
    """The class of a plan's model."""
    return class_of(plan.model, dtype)


def class_of(model: Model, dtype: torch.dtype, hint: str | None = None) -> Any:
    """The class on the meta device. Raises MlloadError, with `hint`, where transformers has none for this config."""
    import transformers
    from huggingface_hub.errors import StrictDataclassError

    dropped = ("quantization_config", "auto_map")
    raw = {k: _decoded(v) for k, v in model.config.raw.items() if k not in dropped}
    model_type = str(raw.pop("model_type", "") or model.config.model_type)
    build: Any = transformers.AutoModelForCausalLM.from_config
    try:
        config = transformers.AutoConfig.for_model(model_type, **raw)
        config._experts_implementation = "eager"
        with torch.device("meta"):
            made = build(config, dtype=dtype, attn_implementation="sdpa")
    except (ValueError, KeyError, TypeError, StrictDataclassError) as error:
        if "scaled_dot_product" in str(error):
            with torch.device("meta"):
                made = build(config, dtype=dtype, attn_implementation="eager")
        else:
            line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise MlloadError(
                f"transformers {transformers.__version__} builds no causal language model of type "
                f"{model_type!r}: {line}",
                hint=hint,
                exit_code=3,
            ) from error
    return made.eval()


def _decoded(value: Any) -> Any:
    """transformers writes floats that JSON has no form for as {"__float__": "Infinity"}."""
    if isinstance(value, dict):
        return float(value["__float__"]) if set(value) == {"__float__"} else {k: _decoded(v) for k, v in value.items()}
    return [_decoded(one) for one in value] if isinstance(value, list) else value
