"""Small configs of many shapes, as models without files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.tensor import TensorRef
from mlload.plan.model import Model, read_model

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 100,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
TIED = {**LLAMA, "tie_word_embeddings": True}
PHI3 = {**LLAMA, "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "num_key_value_heads": 4}
FALCON: dict[str, Any] = {
    "architectures": ["FalconForCausalLM"],
    "model_type": "falcon",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_kv_heads": 2,
    "new_decoder_architecture": True,
    "vocab_size": 128,
    "bias": False,
    "parallel_attn": True,
    "alibi": False,
    "torch_dtype": "bfloat16",
}
GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 64,
    "n_head": 8,
    "n_layer": 2,
    "n_positions": 32,
    "vocab_size": 130,
    "torch_dtype": "float32",
}
MIXTRAL = {
    **LLAMA,
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
}
GPT_OSS: dict[str, Any] = {
    **LLAMA,
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "intermediate_size": 64,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 16,
}
DEEPSEEK: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_nextn_predict_layers": 1,
    "vocab_size": 192,
    "torch_dtype": "bfloat16",
}

MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "tied": TIED,
    "phi3": PHI3,
    "falcon": FALCON,
    "gpt2": GPT2,
    "mixtral": MIXTRAL,
    "gpt_oss": GPT_OSS,
    "deepseek": DEEPSEEK,
}


def model(folder: Path, config: dict[str, Any], *, assume_quant: str | None = None) -> Model:
    """A config as a model whose expected tensors stand in for files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return read_model(Checkpoint.open(str(folder)), assume_quant=assume_quant)


def tensors_of(of: Model) -> dict[str, TensorRef]:
    """The tensors that a model without files would have."""
    found: dict[str, TensorRef] = {}
    for param in of.params:
        for path in param.modules():
            for tensor in param.stored:
                name = path + tensor.suffix
                found[name] = TensorRef(name, tensor.dtype, tensor.shape, 0, 0, tensor.nbytes)
    return found


def with_tensors(of: Model, tensors: dict[str, TensorRef]) -> Model:
    """The same config with these tensors in its files."""
    return read_model(replace(of.checkpoint, tensors=tensors, format="safetensors"))
