"""Model types -> what their classes expect. One family file is imported, the one that is asked for.

A family file has `ARCHITECTURES`, a tuple of `Architecture`; a new one is listed in FAMILIES.
"""

from __future__ import annotations

from importlib import import_module

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.attention import AttentionSpec, StateSpec

__all__ = ["FAMILIES", "Architecture", "AttentionSpec", "StateSpec", "find", "model_types"]

# Family file -> the model types in it.
FAMILIES: dict[str, tuple[str, ...]] = {
    "llama": (
        "llama",
        "granite",
        "smollm3",
        "internlm3",
        "seed_oss",
        "arcee",
        "ernie4_5",
        "exaone4",
        "stablelm",
        "nemotron",
        "starcoder2",
    ),
    "mistral": ("mistral", "ministral", "ministral3"),
    "mixtral": ("mixtral", "phimoe"),
    "qwen": ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
    "gemma": ("gemma", "gemma2", "gemma3_text"),
    "phi": ("phi", "phi3"),
    "cohere": ("cohere", "cohere2"),
    "granite_moe": ("granitemoe", "granitemoeshared"),
    "gpt_oss": ("gpt_oss",),
    "glm": ("glm", "glm4", "glm4_moe"),
    "ernie": ("ernie4_5_moe",),
    "apertus": ("apertus",),
    "internlm": ("internlm2",),
    "minicpm": ("minicpm", "minicpm3"),
    "mimo": ("mimo",),
    "baichuan": ("baichuan",),
    "chatglm": ("chatglm",),
    "hunyuan": ("hunyuan_v1_dense", "hunyuan_v1_moe"),
    "gpt": ("gpt2", "gpt_bigcode", "gptj", "gpt_neox"),
    "bloom": ("bloom",),
    "falcon": ("falcon",),
    "opt": ("opt",),
    "olmo": ("olmo", "olmo2", "olmo3", "olmoe"),
    "qwen_vl": ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"),
    "qwen_hybrid": ("qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text"),
    "gemma4": ("gemma4", "gemma4_text"),
    "llama4": ("llama4", "llama4_text"),
    "llava": (
        "llava",
        "llava_next",
        "llava_onevision",
        "paligemma",
        "mistral3",
        "internvl",
        "internvl_chat",
        "gemma3",
    ),
    "idefics": ("idefics3", "smolvlm"),
    "minimax": ("minimax_m2",),
    "nemotron_nas": ("nemotron-nas",),
    "encoders": ("bert", "roberta", "xlm-roberta", "camembert"),
    "modernbert": ("modernbert",),
    "whisper": ("whisper",),
    "nemotron_h": ("nemotron_h",),
    "mamba": ("mamba", "falcon_mamba", "mamba2"),
    "mamba_hybrid": ("bamba", "falcon_h1", "granitemoehybrid", "jamba"),
    "lfm2": ("lfm2", "lfm2_moe"),
    "kimi_k25": ("kimi_k25",),
    "deepseek": ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa"),
}


# Families whose base classes, without an output head, are published as embedding models.
HEADLESS = ("llama", "mistral", "qwen", "gemma")


def model_types() -> tuple[str, ...]:
    """Every model type that has a table."""
    return tuple(model_type for types in FAMILIES.values() for model_type in types)


def find(config: ConfigView, *, text: bool = False) -> Architecture | None:
    """The table for a config's model type, or None where there is none (see `inferred`), for the whole of it or for
    the language model that it nests.

    text: look for the language model inside a composite config
    """
    model_type = config.text_type if text else config.model_type
    family = next((name for name, types in FAMILIES.items() if model_type in types), None)
    if family is None:
        return None
    rows: tuple[Architecture, ...] = import_module(f"{__name__}.{family}").ARCHITECTURES
    found = next(row for row in rows if row.model_type == model_type)
    if found.nested and not text:
        inside = find(config, text=True)
        if inside is None or inside.nested:
            return None
    if family in HEADLESS and not text and config.architectures:
        from mlload.plan.architectures.base_model import as_base_model, is_base_class

        return as_base_model(found) if is_base_class(config.architectures[0]) else found
    return found
