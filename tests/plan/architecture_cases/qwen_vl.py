"""Qwen's vision-language models."""

from __future__ import annotations

from typing import Any

from tests.plan.architecture_cases.case import SMALL, Case

MOE: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 22}
VISION2: dict[str, Any] = {"depth": 2, "embed_dim": 24, "hidden_size": 48, "num_heads": 3, "patch_size": 4}
VISION2_5: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 24,
    "intermediate_size": 36,
    "num_heads": 3,
    "patch_size": 4,
    "out_hidden_size": 48,
}
VISION3 = VISION2_5 | {"num_position_embeddings": 9, "deepstack_visual_indexes": [0, 1]}


def composite(name: str, vision: dict[str, Any], **text: Any) -> Case:
    outer = {key: text.pop(key) for key in ("tie_word_embeddings",) if key in text}
    return Case({"text_config": SMALL | text, "vision_config": vision, **outer}, name)


CASES: dict[str, tuple[Case, ...]] = {
    "qwen2_vl": (
        composite("Qwen2VLForConditionalGeneration", VISION2),
        composite(
            "Qwen2VLForConditionalGeneration",
            VISION2 | {"mlp_ratio": 2, "spatial_merge_size": 3, "temporal_patch_size": 1},
            tie_word_embeddings=True,
        ),
    ),
    "qwen2_5_vl": (
        composite("Qwen2_5_VLForConditionalGeneration", VISION2_5),
        composite(
            "Qwen2_5_VLForConditionalGeneration",
            VISION2_5 | {"spatial_merge_size": 3, "in_channels": 1},
            tie_word_embeddings=True,
        ),
    ),
    "qwen3_vl": (
        composite("Qwen3VLForConditionalGeneration", VISION3, head_dim=20),
        composite(
            "Qwen3VLForConditionalGeneration",
            VISION3 | {"deepstack_visual_indexes": [1], "spatial_merge_size": 3},
            head_dim=14,
            attention_bias=True,
            tie_word_embeddings=True,
        ),
    ),
    "qwen3_vl_moe": (
        composite("Qwen3VLMoeForConditionalGeneration", VISION3, **MOE, head_dim=20),
        composite(
            "Qwen3VLMoeForConditionalGeneration",
            VISION3 | {"deepstack_visual_indexes": []},
            **MOE,
            mlp_only_layers=[1],
            attention_bias=True,
        ),
    ),
}
