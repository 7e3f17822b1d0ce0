"""`--hf-overrides`: changes to config.json that the engine makes before it looks at it (vLLM config/model.py:555)."""

from __future__ import annotations

import json
from typing import Any

from mlload.checkpoint.config import AUDIO_KEYS, TEXT_KEYS, VISION_KEYS
from mlload.checkpoint.finding import MlloadError

NESTED = frozenset((*TEXT_KEYS, *VISION_KEYS, *AUDIO_KEYS))


def read_overrides(text: str) -> dict[str, Any]:
    """The JSON object of the flag. Raises MlloadError where it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MlloadError(f"--hf-overrides takes a JSON object: {error}") from None
    if not isinstance(found, dict):
        raise MlloadError(f"--hf-overrides takes a JSON object, not {text}")
    return found


def overridden(config: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """The config with overrides: a dict for a nested model's config changes single fields of it, any other value
    takes the place of the old one."""
    found = dict(config)
    for key, value in overrides.items():
        inner = found.get(key)
        nested = isinstance(value, dict) and isinstance(inner, dict) and key in NESTED
        found[key] = overridden(inner, value) if nested and isinstance(inner, dict) else value
    return found
