"""Prompts and decoded tokens of a sweep, within the positions that a model has."""

from __future__ import annotations

from dataclasses import replace

from mlload.checkpoint.finding import MlloadError
from mlload.engine.settings import Settings
from mlload.plan.model import Model
from mlload.validators.lengths import derived_max_model_len


def fitted(model: Model, settings: Settings) -> tuple[Settings, str]:
    """The settings with what was not typed shortened to what fits, and the sentence that says so ("" where all fits).

    Raises MlloadError where what was typed is too long.
    """
    found = derived_max_model_len(model.checkpoint, model.config)
    prompt, decode = settings.prompt_len, settings.decode
    if found is None or prompt + decode <= found.length:
        return settings, ""
    limit, typed = found.length, settings.typed
    longest = limit - decode if "decode" in typed else limit - 1
    if "prompt_len" in typed or longest < 1:
        room = limit - decode
        raise MlloadError(
            f"--prompt-len {prompt:,} and --decode {decode:,} are {prompt + decode:,} tokens, and the model has "
            f"{limit:,} positions ({found.key})",
            hint=f"--prompt-len {room}" if room >= 1 else f"--prompt-len {max(1, limit // 2)} --decode {limit // 2}",
        )
    if "decode" not in typed:
        decode = min(decode, limit // 2)
    prompt = min(prompt, limit - decode)
    said = f"prompts of {prompt:,} tokens and {decode:,} to decode, all that {limit:,} positions hold ({found.key})"
    return replace(settings, prompt_len=prompt, decode=decode), said
