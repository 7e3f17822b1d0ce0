"""GGUF's names for the modules of a model, and Hugging Face's."""

from __future__ import annotations

import re

# Outside the layers.
OUTER: dict[str, str] = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

# In a layer: after "blk.{layer}." -> after "model.layers.{layer}.".
_COMMON: dict[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{expert}.gate_proj",
    "ffn_up_exps": "mlp.experts.{expert}.up_proj",
    "ffn_down_exps": "mlp.experts.{expert}.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_FOUR_NORMS: dict[str, str] = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_TWO_NORMS_AFTER: dict[str, str] = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_BY_TYPE: dict[str, dict[str, str]] = {
    "mixtral": {
        "ffn_gate_inp": "block_sparse_moe.gate",
        "ffn_gate_exps": "block_sparse_moe.experts.{expert}.w1",
        "ffn_up_exps": "block_sparse_moe.experts.{expert}.w3",
        "ffn_down_exps": "block_sparse_moe.experts.{expert}.w2",
    },
    "phi3": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "gemma2": _FOUR_NORMS,
    "gemma3_text": _FOUR_NORMS,
    "olmo2": _TWO_NORMS_AFTER,
    "exaone4": _TWO_NORMS_AFTER,
    "seed_oss": {"post_attention_norm": "post_attention_layernorm"},
    "glm4": {
        "post_attention_norm": "post_self_attn_layernorm",
        "post_ffw_norm": "post_mlp_layernorm",
        "ffn_up": "mlp.gate_up_proj",
    },
    "starcoder2": {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
}
_BLOCK = re.compile(r"blk\.(\d+|\{layer\})\.(\w+)$")
_LAYER = re.compile(r"model\.layers\.(\d+|\{layer\})\.(.+)$")


def layer_names(model_type: str) -> dict[str, str]:
    """GGUF's name within a layer -> Hugging Face's. Stacked experts have "{expert}" where theirs are apart."""
    own = _BY_TYPE.get(model_type, {})
    taken = set(own.values())
    return {theirs: ours for theirs, ours in _COMMON.items() if ours not in taken} | own


def hf_module(name: str, model_type: str) -> str | None:
    """ "blk.3.attn_q" -> "model.layers.3.self_attn.q_proj"; None for what has no counterpart (rope_freqs)."""
    if name in OUTER:
        return OUTER[name]
    match = _BLOCK.match(name)
    inner = layer_names(model_type).get(match[2]) if match else None
    return f"model.layers.{match[1]}.{inner}" if match and inner else None


def gguf_module(module: str, model_type: str) -> str | None:
    """ "model.layers.3.self_attn.q_proj" -> "blk.3.attn_q"; modules of experts need "{expert}" for the number."""
    for theirs, ours in OUTER.items():
        if module == ours:
            return theirs
    match = _LAYER.match(module)
    if match is None:
        return None
    inner = {ours: theirs for theirs, ours in layer_names(model_type).items()}.get(match[2])
    return f"blk.{match[1]}.{inner}" if inner else None
