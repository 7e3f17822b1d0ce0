"""Small configs that transformers can run, one for each model type that the native engine is held against.

Sizes differ, so that swapped dims show: 4 heads of 12 over hidden 48, 2 KV heads, 40 wide, 3 layers.
"""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "vocab_size": 80,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MLA = {
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "head_dim": 8,
    "num_key_value_heads": 4,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}

SSM: dict[str, Any] = {
    "mamba_n_heads": 8, "mamba_d_head": 12, "mamba_n_groups": 4, "mamba_d_state": 8, "mamba_expand": 2,
    "mamba_chunk_size": 4,
}  # fmt: skip
MAMBA2: dict[str, Any] = {
    "vocab_size": 80, "hidden_size": 48, "num_hidden_layers": 2, "state_size": 8, "num_heads": 8, "head_dim": 12,
    "expand": 2, "chunk_size": 4,
}  # fmt: skip
DELTA: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "linear_num_key_heads": 4,
    "linear_num_value_heads": 8, "linear_key_head_dim": 6, "linear_value_head_dim": 10, "linear_conv_kernel_dim": 4,
}  # fmt: skip

DENSE = """
llama mistral ministral3 qwen2 qwen3 gemma gemma2 gemma3_text granite smollm3 arcee ernie4_5 exaone4 glm glm4 olmo olmo2
olmo3 phi phi3 cohere cohere2 apertus seed_oss nemotron starcoder2 hunyuan_v1_dense internlm3
"""


def small(**fields: Any) -> dict[str, Any]:
    return {**SMALL, **fields}


CONFIGS: dict[str, dict[str, Any]] = {
    **{name: small(model_type=name) for name in DENSE.split()},
    "llama tied": small(model_type="llama", tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "phi tied": small(model_type="phi", tie_word_embeddings=True, qk_layernorm=True),
    "hunyuan_v1_dense": small(model_type="hunyuan_v1_dense", head_dim=12),
    "mixtral": small(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2),
    "phimoe": small(model_type="phimoe", num_local_experts=4, num_experts_per_tok=2),
    "qwen2_moe": small(
        model_type="qwen2_moe",
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        shared_expert_intermediate_size=56,
    ),
    "qwen3_moe": small(model_type="qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24),
    "granitemoe": small(model_type="granitemoe", num_local_experts=4, num_experts_per_tok=2),
    "gpt_oss": small(
        model_type="gpt_oss",
        num_local_experts=4,
        num_experts_per_tok=2,
        head_dim=12,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        sliding_window=4,
    ),
    "deepseek_v2": small(model_type="deepseek_v2", **{**MLA, "topk_method": "greedy", "num_experts_per_tok": 2}),
    "deepseek_v3": small(model_type="deepseek_v3", **MLA),
    "glm4_moe": small(
        model_type="glm4_moe",
        head_dim=12,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        n_group=1,
        topk_group=1,
    ),
    "gpt2": {"model_type": "gpt2", "vocab_size": 80, "n_embd": 48, "n_head": 4, "n_layer": 2, "n_positions": 32},
    "gpt_neox": small(model_type="gpt_neox"),
    "gptj": {
        "model_type": "gptj", "vocab_size": 80, "n_embd": 48, "n_head": 4, "n_layer": 2, "n_positions": 32,
        "rotary_dim": 4,
    },
    "gpt_bigcode": {
        "model_type": "gpt_bigcode", "vocab_size": 80, "n_embd": 48, "n_head": 4, "n_layer": 2, "n_positions": 32,
    },
    "falcon": {
        "model_type": "falcon", "vocab_size": 80, "hidden_size": 48, "num_attention_heads": 4, "num_kv_heads": 2,
        "num_hidden_layers": 2, "new_decoder_architecture": True, "bias": False,
    },
    "opt": {
        "model_type": "opt", "vocab_size": 80, "hidden_size": 48, "num_attention_heads": 4, "ffn_dim": 40,
        "num_hidden_layers": 2, "max_position_embeddings": 32, "word_embed_proj_dim": 48,
    },
    "bloom": {"model_type": "bloom", "vocab_size": 80, "hidden_size": 48, "n_head": 4, "n_layer": 2},
    "mamba": {"model_type": "mamba", "vocab_size": 80, "hidden_size": 48, "num_hidden_layers": 2, "state_size": 8},
    "lfm2": small(model_type="lfm2", layer_types=["conv", "full_attention", "conv"]),
    "lfm2_moe": small(
        model_type="lfm2_moe", layer_types=["conv", "full_attention", "conv"], num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=24, num_dense_layers=1, norm_topk_prob=True,
    ),
    "falcon alibi": {
        "model_type": "falcon", "vocab_size": 80, "hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2,
        "new_decoder_architecture": False, "multi_query": False, "alibi": True, "bias": True, "parallel_attn": False,
    },
    "cohere normed": small(model_type="cohere", use_qk_norm=True),
    "falcon_mamba": {
        "model_type": "falcon_mamba", "vocab_size": 80, "hidden_size": 48, "num_hidden_layers": 2, "state_size": 8,
    },
    "mamba2": {**MAMBA2, "model_type": "mamba2", "n_groups": 4},
    "mamba2 one group": {**MAMBA2, "model_type": "mamba2", "n_groups": 1},
    "jamba": small(
        model_type="jamba", mamba_d_state=8, mamba_dt_rank=6, num_experts=4, num_experts_per_tok=2,
        attn_layer_period=3, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1,
        use_mamba_kernels=False,
    ),
    "bamba": small(model_type="bamba", attn_layer_indices=[1], **SSM),
    "falcon_h1": small(
        model_type="falcon_h1", mamba_d_ssm=96, head_dim=12, ssm_multipliers=[0.5, 1.25, 2.0, 0.75, 1.5], **SSM
    ),
    "granitemoehybrid": small(
        model_type="granitemoehybrid", layer_types=["mamba", "attention", "mamba"], num_local_experts=4,
        num_experts_per_tok=2, shared_intermediate_size=56, **SSM,
    ),
    "nemotron_h": small(
        model_type="nemotron_h", layers_block_type=["mamba", "attention", "mlp"], head_dim=12, mamba_num_heads=8,
        mamba_head_dim=12, ssm_state_size=8, n_groups=4, chunk_size=4, attention_bias=False,
    ),
    "qwen3_next": small(
        model_type="qwen3_next", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, head_dim=12,
        shared_expert_intermediate_size=56, **DELTA,
    ),
    "qwen3_5_text": small(model_type="qwen3_5_text", head_dim=12, **DELTA),
}  # fmt: skip
# Sizes that three ranks divide; 150 words are padded to 192.
ON_THREE: dict[str, dict[str, Any]] = {
    "mixtral on three": small(
        model_type="mixtral", num_local_experts=4, num_experts_per_tok=2, num_attention_heads=6, num_key_value_heads=3,
        vocab_size=150,
    ),
}  # fmt: skip
