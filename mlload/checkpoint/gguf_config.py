"""A GGUF file's metadata as the config.json that the same model would have.

Key names are those of ggml's docs/gguf.md; what they mean for a Hugging Face config was read there and in the
model classes' configs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlload.checkpoint.tensor import TensorRef

# `general.architecture` -> model_type, for the types whose names `gguf_names` knows. A llama with experts is a mixtral.
MODEL_TYPES: dict[str, str] = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2_moe",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi3": "phi3",
    "arcee": "arcee",
    "command-r": "cohere",
    "ernie4_5": "ernie4_5",
    "exaone4": "exaone4",
    "glm4": "glm4",
    "granite": "granite",
    "mistral3": "ministral3",
    "nemotron": "nemotron",
    "olmo2": "olmo2",
    "olmoe": "olmoe",
    "seed_oss": "seed_oss",
    "smollm3": "smollm3",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
}

# Key after "<architecture>." -> config field.
FIELDS: dict[str, str] = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "vocab_size": "vocab_size",
}
TABLE, HEAD = "token_embd.weight", "output.weight"


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorRef]) -> dict[str, Any]:
    """The fields that sizes and verdicts hang on; {} where the metadata does not name an architecture.

    tensors: the file's, by their GGUF names: they tell the vocabulary, whether the head is tied, and the biases
    """
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        return {}
    config: dict[str, Any] = {"model_type": MODEL_TYPES.get(architecture, architecture)}
    for key, field in FIELDS.items():
        value = _one(metadata.get(f"{architecture}.{key}"))
        if value is not None:
            config[field] = value
    if architecture == "llama" and config.get("num_experts"):
        config["model_type"] = "mixtral"
    config["tie_word_embeddings"] = HEAD not in tensors
    if TABLE in tensors and len(tensors[TABLE].shape) == 2:
        config["vocab_size"] = tensors[TABLE].shape[0]
    if "head_dim" not in config:
        _head_dim(config, metadata.get(f"{architecture}.rope.dimension_count"))
    if architecture == "llama" and "blk.0.attn_q.bias" in tensors:
        config["attention_bias"] = True
    scaling = _rope_scaling(metadata, architecture)
    if scaling:
        config["rope_scaling"] = scaling
    return config


def _one(value: Any) -> Any:
    """A value as it is; of an array with one entry per layer the entry, where all are the same."""
    if isinstance(value, list):
        return value[0] if value and all(entry == value[0] for entry in value) else None
    return value if isinstance(value, (int, float, str)) else None


def _head_dim(config: dict[str, Any], rotated: Any) -> None:
    """Older files leave the head size out where it is hidden / heads, and say how much of a head is rotated."""
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if isinstance(hidden, int) and isinstance(heads, int) and heads > 0 and hidden % heads == 0:
        config["head_dim"] = hidden // heads
    elif isinstance(rotated, int) and config["model_type"] in ("llama", "mixtral"):
        config["head_dim"] = rotated


def _rope_scaling(metadata: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    kind = metadata.get(f"{architecture}.rope.scaling.type")
    if not isinstance(kind, str) or kind == "none":
        return {}
    scaling: dict[str, Any] = {"rope_type": kind}
    for key, field in (("factor", "factor"), ("original_context_length", "original_max_position_embeddings")):
        value = metadata.get(f"{architecture}.rope.scaling.{key}")
        if isinstance(value, (int, float)):
            scaling[field] = value
    return scaling
