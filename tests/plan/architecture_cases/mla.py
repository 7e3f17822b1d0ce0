"""Multi-head latent attention."""

from __future__ import annotations

from typing import Any

from tests.plan.architecture_cases.case import Case, small

MLA: dict[str, Any] = {
    "q_lora_rank": 12,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
INDEXER: dict[str, Any] = {"index_n_heads": 3, "index_head_dim": 14, "index_topk": 4}

CASES: dict[str, tuple[Case, ...]] = {
    "deepseek_v2": (
        small(**MLA),
        small(**MLA | {"q_lora_rank": None, "n_shared_experts": 1, "first_k_dense_replace": 2, "n_group": 1}),
    ),
    "deepseek_v3": (
        small(**MLA),
        small(**MLA | {"attention_bias": True, "first_k_dense_replace": 0, "num_nextn_predict_layers": 1}),
    ),
    "deepseek_v32": (small(**MLA, **INDEXER), small(**MLA, **INDEXER, num_hidden_layers=2, attention_bias=True)),
    "glm_moe_dsa": (
        small(**MLA, **INDEXER),
        small(**MLA, **INDEXER, num_hidden_layers=5, index_topk_freq=2, tie_word_embeddings=True),
        small(**MLA, **INDEXER, num_hidden_layers=4, index_topk_pattern="FSSF"),
    ),
}
