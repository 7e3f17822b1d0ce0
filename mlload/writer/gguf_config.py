"""config.json of a GGUF file's model, as far as its class needs it to give the same numbers.

Key names: ggml's docs/gguf.md. What llama.cpp holds in code and not in the file (its src/llama-model.cpp, per
architecture) is written out here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import pi
from typing import Any

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.gguf_config import config_from_gguf
from mlload.checkpoint.tensor import TensorRef

# model_type -> class. Families whose conversion is held against transformers' own reading or against arithmetic.
CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
TORCH = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
# The largest model of each type scales queries by hidden / heads, the others by the size of a head.
LARGEST = {"gemma2": 46, "gemma3_text": 62}
# Layers of a period, the last of which sees everything.
PERIOD = {"gemma2": 2, "gemma3_text": 6}


def hf_config(
    metadata: Mapping[str, Any], tensors: Mapping[str, TensorRef], rotary: Mapping[str, Sequence[float]], dtype: str
) -> dict[str, Any]:
    """The config. rotary: values of rope_freqs and its kin. Raises MlloadError for another family."""
    config = config_from_gguf(metadata, tensors)
    kind = config.get("model_type", "")
    if kind not in CLASSES:
        raise MlloadError(
            f"GGUF files of the architecture {metadata.get('general.architecture')!r} are not converted; "
            f"those of {', '.join(CLASSES)} are"
        )
    architecture = metadata["general.architecture"]

    def value(key: str) -> Any:
        return metadata.get(f"{architecture}.{key}")

    config = {"architectures": [CLASSES[kind]], **config, "torch_dtype": TORCH[dtype]}
    for key, field in (
        ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
    ):
        if isinstance(value(key), int | float):
            config[field] = value(key)
    for key in ("bos_token_id", "eos_token_id", "padding_token_id"):
        if isinstance(metadata.get(f"tokenizer.ggml.{key}"), int):
            config[key.replace("padding", "pad")] = metadata[f"tokenizer.ggml.{key}"]
    # Some classes have a default that lies outside of other vocabularies.
    config.setdefault("pad_token_id", None)
    if kind.startswith("gemma"):
        _gemma(config, kind)
    if kind in ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe"):
        config.pop("sliding_window", None)
    if kind == "mixtral":
        config["num_local_experts"] = config.pop("num_experts")
        config.setdefault("sliding_window", None)
    rotated, head = value("rope.dimension_count"), config.get("head_dim")
    if kind == "phi3":
        if isinstance(rotated, int) and head and rotated != head:
            config["partial_rotary_factor"] = rotated / head
        _long_rope(config, value, rotary)
    if "rope_freqs.weight" in rotary:
        config["rope_scaling"] = _llama3(config, rotary["rope_freqs.weight"])
    return config


def _gemma(config: dict[str, Any], kind: str) -> None:
    config["hidden_activation"] = "gelu_pytorch_tanh"
    if kind == "gemma":
        config["hidden_act"] = "gelu_pytorch_tanh"
        return
    layers, period = config["num_hidden_layers"], PERIOD[kind]
    config["layer_types"] = [
        "full_attention" if (layer + 1) % period == 0 else "sliding_attention" for layer in range(layers)
    ]
    config["query_pre_attn_scalar"] = (
        config["hidden_size"] // config["num_attention_heads"] if layers == LARGEST[kind] else config["head_dim"]
    )
    if kind == "gemma3_text":
        config["rope_local_base_freq"] = 10000.0
        config.setdefault("rope_theta", 1e6)


def _long_rope(config: dict[str, Any], value: Any, rotary: Mapping[str, Sequence[float]]) -> None:
    long, short = rotary.get("rope_factors_long.weight"), rotary.get("rope_factors_short.weight")
    if not long or not short:
        return
    original = value("rope.scaling.original_context_length")
    if isinstance(original, int):
        config["original_max_position_embeddings"] = original
    config["rope_scaling"] = {"type": "longrope", "long_factor": list(long), "short_factor": list(short)}


def _llama3(config: Mapping[str, Any], freqs: Sequence[float]) -> dict[str, Any]:
    """Llama 3's scaling, whose four numbers a GGUF file has only as the factors that they make.

    Each wavelength up to original / high is kept, each above original / low divided by `factor`, with a blend
    between. All published files have low 1, high 4 and 8192 positions; that is checked.
    """
    factor = round(max(freqs), 3)
    guess = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    theta, head = float(config.get("rope_theta", 10000.0)), int(config["head_dim"])
    for number, found in enumerate(freqs):
        wavelength = 2 * pi * theta ** (2 * number / head)
        if wavelength < 8192 / 4:
            expected = 1.0
        elif wavelength > 8192:
            expected = factor
        else:
            smooth = (8192 / wavelength - 1) / 3
            expected = 1 / ((1 - smooth) / factor + smooth)
        if abs(found - expected) > 1e-3 * expected:
            raise MlloadError(
                f"rope_freqs are not those of Llama 3's scaling (number {number} is {found:.4g}, not {expected:.4g})",
                exit_code=1,
            )
    return guess
