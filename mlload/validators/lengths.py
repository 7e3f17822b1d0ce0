"""The context length that an engine derives from a config.

As vLLM 0.33 does it (config/model.py, `_get_and_verify_max_len`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.config import ConfigView

# Keys that limit the context, in the order in which vLLM asks for them
# (transformers_utils/model_arch_config_convertor.py).
LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
# Rope types whose max_position_embeddings counts the scaling already.
SCALED = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")


class DerivedLength(NamedTuple):
    """length in tokens; key: the config field that set it; default: what the engine takes unasked (shorter than
    length for LongRoPE models)"""

    length: int
    key: str
    default: int


def derived_max_model_len(checkpoint: Checkpoint, config: ConfigView) -> DerivedLength | None:
    """The longest context that the engine accepts, or None where the config gives no limit."""
    key, length = min(
        ((k, v) for k in LENGTH_KEYS if isinstance(v := config.text.get(k), int) and not isinstance(v, bool) and v > 0),
        key=lambda item: item[1],
        default=(None, 0),
    )
    if key is None:
        length = config.size("max_position_embeddings")
        if not length:
            return None
        key = "max_position_embeddings"
    own = config.text.get("model_max_length")
    if isinstance(own, int) and not isinstance(own, bool) and own > 0:
        key, length = "model_max_length", own  # wins over the others (Command-R)
    settings = _rope(config.text)
    kinds = [str(s.get("rope_type") or s.get("type") or "default") for s in settings]
    if "gemma3" not in config.text_type:
        factor: Any = 1.0
        for kind, one in zip(kinds, settings, strict=True):
            if kind not in SCALED:
                factor = one.get("factor", factor)
        if isinstance(factor, (int, float)) and not isinstance(factor, bool) and factor > 0:
            with suppress(OverflowError):  # no number that anybody meant
                length = int(length * factor)
    default = length
    if "longrope" in kinds or "su" in kinds:
        original = config.text.get("original_max_position_embeddings")
        default = original if isinstance(original, int) and original > 0 else length
    return DerivedLength(length, key, min(default, length))


def _rope(text: dict[str, Any]) -> list[dict[str, Any]]:
    for key in ("rope_parameters", "rope_scaling"):
        value = text.get(key)
        if isinstance(value, dict) and value:
            nested = [inner for inner in value.values() if isinstance(inner, dict)]
            return nested if nested and len(nested) == len(value) else [value]
    return []
