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
}
