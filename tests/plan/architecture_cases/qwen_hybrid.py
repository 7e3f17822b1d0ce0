"""Qwen3-Next and Qwen3.5."""

from __future__ import annotations

from typing import Any

from tests.plan.architecture_cases.case import SMALL, Case, small

DELTA: dict[str, Any] = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 6,
    "head_dim": 14,
}
MOE: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 22,
    "shared_expert_intermediate_size": 26,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
TYPES = ["linear_attention", "full_attention", "linear_attention"]
VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 24,
    "intermediate_size": 36,
    "num_heads": 3,
    "patch_size": 4,
    "out_hidden_size": 48,
    "num_position_embeddings": 9,
}


def composite(name: str, vision: dict[str, Any], **text: Any) -> Case:
    outer = {key: text.pop(key) for key in ("tie_word_embeddings",) if key in text}
    return Case({"text_config": SMALL | DELTA | text, "vision_config": vision, **outer}, name)


CASES: dict[str, tuple[Case, ...]] = {
    "qwen3_next": (
        small(**DELTA, **MOE, layer_types=TYPES),
        small(**DELTA | {"linear_num_key_heads": 4}, **MOE | {"mlp_only_layers": [2]}, num_hidden_layers=4),
        small(**DELTA, **MOE | {"decoder_sparse_step": 2}, attention_bias=True, tie_word_embeddings=True),
    ),
    "qwen3_5": (
        composite("Qwen3_5ForConditionalGeneration", VISION, layer_types=TYPES),
        composite(
            "Qwen3_5ForConditionalGeneration",
            VISION | {"spatial_merge_size": 3},
            num_hidden_layers=5,
            linear_num_value_heads=2,
            attention_bias=True,
            tie_word_embeddings=True,
        ),
    ),
    "qwen3_5_moe": (
        composite("Qwen3_5MoeForConditionalGeneration", VISION, **MOE, layer_types=TYPES),
        composite("Qwen3_5MoeForConditionalGeneration", VISION | {"depth": 3}, **MOE, num_hidden_layers=4),
    ),
    "qwen3_5_text": (small(**DELTA, layer_types=TYPES), small(**DELTA, tie_word_embeddings=True)),
    "qwen3_5_moe_text": (small(**DELTA, **MOE, layer_types=TYPES), small(**DELTA, **MOE, num_hidden_layers=4)),
}
