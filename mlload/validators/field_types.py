"""Fields of config.json whose type is not the one that transformers takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from mlload.checkpoint.finding import Finding, Hint
from mlload.validators.context import Context
from mlload.validators.rules import rule

# What each is written as in JSON. config_types.json says for which model types; it is read only when one differs.
FIELDS: dict[str, type] = {
    "rms_norm_eps": float,
    "layer_norm_eps": float,
    "initializer_range": float,
    "use_cache": bool,
    "tie_word_embeddings": bool,
    "attention_bias": bool,
    "mlp_bias": bool,
    "hidden_act": str,
    "max_position_embeddings": int,
    "vocab_size": int,
    "hidden_size": int,
    "intermediate_size": int,
    "num_hidden_layers": int,
    "num_attention_heads": int,
}
WORDS = {float: "a number with a point (1e-06, not 1)", bool: "true or false", str: "a string", int: "a whole number"}


@rule("CF015", "a field of another type")
def field_type(context: Context) -> Iterator[Finding]:
    """transformers 5 checks the types of a config's fields when it reads it, and vLLM reads configs through it: an
    epsilon in quotes, 0 for false, 8192.0 for 8192 or a null where the class has a number stop the start. Only fields
    whose type is the same wherever a class declares them are judged, and only for model types whose class does."""
    config, profile = context.config, context.plan.profile
    if config.text_type in profile.value("config_registry", ()):
        return  # read by a class of the engine's own, which checks nothing
    for name, kind in FIELDS.items():
        if name not in config.text or name in config.problems:
            continue
        value = config.text[name]
        if type(value) is kind or config.text_type not in declaring(name):
            continue
        yield Finding(
            "CF015",
            "error",
            "starts",
            f"config.json: {name}",
            f"{name} is {json.dumps(value)[:60]}, and transformers takes {WORDS[kind]} there",
            {"value": json.dumps(value)[:200]},
            (Hint(f"write {name} as {WORDS[kind]}"),),
        )


@cache
def declaring(name: str) -> frozenset[str]:
    """Model types whose class declares the field in this type and no other."""
    text = Path(__file__).with_name("config_types.json").read_text(encoding="utf-8")
    return frozenset(json.loads(text)["fields"][name]["model_types"])
