"""State-space models, hybrids of them with attention, and short convolutions."""

from __future__ import annotations

from typing import Any

from tests.plan.architecture_cases.case import Case, small

NEMOTRON: dict[str, Any] = {
    "hidden_size": 48,
    "vocab_size": 80,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 40,
    "mamba_num_heads": 6,
    "mamba_head_dim": 4,
    "n_groups": 2,
    "ssm_state_size": 7,
    "conv_kernel": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 22,
    "moe_shared_expert_intermediate_size": 26,
}
# width = 2 x 48 = 96 = 8 heads of 12
MIXER: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 12,
    "mamba_n_groups": 2,
    "mamba_d_state": 7,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
JAMBA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "attn_layer_period": 4,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "mamba_d_state": 7,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_dt_rank": 5,
}
PLAIN: dict[str, Any] = {"vocab_size": 80, "hidden_size": 48, "num_hidden_layers": 2, "state_size": 7, "conv_kernel": 4}
MIXED = ["mamba", "attention", "mamba"]
CONV = ["conv", "full_attention", "conv"]

CASES: dict[str, tuple[Case, ...]] = {
    "nemotron_h": (
        Case(NEMOTRON | {"hybrid_override_pattern": "M-*E"}),
        Case(
            NEMOTRON
            | {
                "layers_block_type": ["mamba", "moe", "attention", "mlp", "mamba"],
                "n_groups": 1,
                "moe_latent_size": 18,
                "attention_bias": True,
                "mlp_bias": False,
                "use_bias": True,
                "use_conv_bias": False,
            }
        ),
        Case(NEMOTRON | {"hybrid_override_pattern": "M-M*-", "mlp_bias": True, "tie_word_embeddings": True}),
    ),
    "mamba": (
        Case(PLAIN | {"time_step_rank": 5}),
        Case(PLAIN | {"use_bias": True, "use_conv_bias": False, "expand": 3, "tie_word_embeddings": False}),
    ),
    "falcon_mamba": (
        Case(PLAIN | {"time_step_rank": 5}),
        Case(PLAIN | {"use_bias": True, "use_conv_bias": False, "expand": 3, "tie_word_embeddings": False}),
    ),
    "mamba2": (
        Case(PLAIN | {"num_heads": 8, "head_dim": 12, "n_groups": 2, "expand": 2}),
        Case(PLAIN | {"num_heads": 6, "head_dim": 8, "n_groups": 1, "expand": 1, "use_bias": True}),
        Case(PLAIN | {"num_heads": 8, "head_dim": 12, "n_groups": 1, "expand": 2, "tie_word_embeddings": True}),
    ),
    "bamba": (
        small(**MIXER, attn_layer_indices=[1]),
        small(**MIXER, attn_layer_indices=[0, 2], attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    ),
    "falcon_h1": (
        small(**MIXER, mamba_d_ssm=96, head_dim=10),
        small(
            **MIXER | {"mamba_d_head": 10, "mamba_n_groups": 1},
            mamba_d_ssm=80,
            mamba_rms_norm=True,
            mamba_conv_bias=False,
            mamba_proj_bias=True,
            projectors_bias=True,
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=True,
            head_dim=14,
        ),
    ),
    "granitemoehybrid": (
        small(**MIXER, layer_types=MIXED, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=26),
        small(
            **MIXER | {"mamba_n_groups": 1},
            layer_types=MIXED,
            num_local_experts=0,
            shared_intermediate_size=22,
            attention_bias=True,
            mamba_proj_bias=True,
            tie_word_embeddings=True,
        ),
    ),
    "jamba": (
        small(**JAMBA),
        small(
            **JAMBA | {"num_experts": 1, "mamba_proj_bias": True, "mamba_conv_bias": False}, tie_word_embeddings=True
        ),
    ),
    "lfm2": (
        small(layer_types=CONV, conv_L_cache=3, block_multiple_of=8),
        small(layer_types=CONV, conv_L_cache=4, block_auto_adjust_ff_dim=False, conv_bias=True),
        small(layer_types=CONV, conv_L_cache=4, block_multiple_of=16, block_ffn_dim_multiplier=1.5),
    ),
    "lfm2_moe": (
        small(layer_types=CONV, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=22, num_dense_layers=1),
        small(
            layer_types=CONV,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=22,
            num_dense_layers=2,
            conv_L_cache=4,
            use_expert_bias=False,
            conv_bias=True,
        ),
    ),
}
