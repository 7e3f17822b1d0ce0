"""Decoders with experts."""

from __future__ import annotations

from tests.plan.architecture_cases.case import Case, small

CASES: dict[str, tuple[Case, ...]] = {
    "mixtral": (small(num_local_experts=3), small(num_local_experts=5, head_dim=20, tie_word_embeddings=True)),
    "phimoe": (
        small(num_local_experts=3),
        small(num_local_experts=5, attention_bias=True, lm_head_bias=True, tie_word_embeddings=False),
    ),
    "qwen2_moe": (
        small(num_experts=3, moe_intermediate_size=24, shared_expert_intermediate_size=56),
        small(
            num_experts=3,
            moe_intermediate_size=24,
            shared_expert_intermediate_size=56,
            decoder_sparse_step=2,
            qkv_bias=False,
            tie_word_embeddings=True,
        ),
    ),
    "qwen3_moe": (
        small(num_experts=3, moe_intermediate_size=24),
        small(num_experts=3, moe_intermediate_size=24, head_dim=20, mlp_only_layers=[1], attention_bias=True),
        small(num_experts=5, moe_intermediate_size=24, decoder_sparse_step=2, tie_word_embeddings=True),
    ),
    "olmoe": (small(num_experts=3), small(num_experts=5, attention_bias=True, tie_word_embeddings=True)),
    "granitemoe": (
        small(num_local_experts=3),
        small(num_local_experts=5, attention_bias=True, tie_word_embeddings=True),
    ),
    "granitemoeshared": (
        small(num_local_experts=3),
        small(num_local_experts=5, shared_intermediate_size=56, attention_bias=True, tie_word_embeddings=True),
    ),
    "gpt_oss": (
        small(num_local_experts=3, head_dim=20),
        small(num_local_experts=3, head_dim=20, attention_bias=False, tie_word_embeddings=True),
    ),
    "glm4_moe": (
        small(n_routed_experts=3, moe_intermediate_size=24, head_dim=20),
        small(
            n_routed_experts=3,
            moe_intermediate_size=24,
            n_shared_experts=2,
            first_k_dense_replace=2,
            attention_bias=True,
            use_qk_norm=True,
            tie_word_embeddings=True,
        ),
    ),
    "ernie4_5_moe": (
        small(moe_num_experts=3, moe_intermediate_size=24),
        small(
            moe_num_experts=3,
            moe_intermediate_size=24,
            moe_num_shared_experts=0,
            moe_layer_start_index=0,
            moe_layer_end_index=1,
            moe_layer_interval=2,
            use_bias=True,
            tie_word_embeddings=False,
        ),
    ),
    "hunyuan_v1_moe": (
        small(head_dim=12, num_experts=3),
        small(head_dim=20, num_experts=5, attention_bias=True, tie_word_embeddings=True),
    ),
}
