"""Encoder, projector and language model: LLaVA, Mistral 3, InternVL, Gemma 3, Llama 4."""

from __future__ import annotations

from typing import Any

from tests.plan.architecture_cases.case import SMALL, Case, small

TOWER: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "image_size": 12,
    "patch_size": 4,
}
CLIP = TOWER | {"model_type": "clip_vision_model"}
SIGLIP = TOWER | {"model_type": "siglip_vision_model"}
PIXTRAL = TOWER | {"model_type": "pixtral", "head_dim": 8}
INTERN = TOWER | {"model_type": "internvl_vision", "image_size": [12, 12], "patch_size": [4, 4]}
LLAMA = SMALL | {"model_type": "llama"}
QWEN = SMALL | {"model_type": "qwen2"}
MISTRAL = SMALL | {"model_type": "mistral", "head_dim": 20}
GEMMA = SMALL | {"model_type": "gemma3_text", "head_dim": 10}

SCOUT: dict[str, Any] = SMALL | {
    "head_dim": 10,
    "intermediate_size_mlp": 60,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
}
SCOUT_TOWER: dict[str, Any] = TOWER | {
    "intermediate_size": 96,
    "projector_input_dim": 20,
    "projector_output_dim": 20,
    "vision_output_dim": 20,
}


def whole(name: str, text: dict[str, Any], vision: dict[str, Any], **outer: Any) -> Case:
    return Case({"text_config": text, "vision_config": vision, **outer}, f"{name}ForConditionalGeneration")


CASES: dict[str, tuple[Case, ...]] = {
    "llava": (
        whole("Llava", LLAMA, CLIP),
        whole("Llava", QWEN, SIGLIP, vision_feature_layer=-1, multimodal_projector_bias=False),
        whole("Llava", LLAMA, CLIP, vision_feature_layer=[-2, 1], tie_word_embeddings=True),
    ),
    "llava_next": (
        whole("LlavaNext", MISTRAL, CLIP),
        whole("LlavaNext", LLAMA, SIGLIP, vision_feature_layer=1, multimodal_projector_bias=False),
    ),
    "llava_onevision": (
        whole("LlavaOnevision", QWEN, SIGLIP),
        whole("LlavaOnevision", QWEN, SIGLIP | {"vision_use_head": False}, tie_word_embeddings=True),
    ),
    "paligemma": (
        whole("PaliGemma", SMALL | {"model_type": "gemma", "head_dim": 10}, SIGLIP, projection_dim=48),
        whole("PaliGemma", SMALL | {"model_type": "gemma2", "head_dim": 10}, SIGLIP, projection_dim=48),
    ),
    "idefics3": (
        whole("Idefics3", LLAMA, TOWER, scale_factor=2),
        whole("Idefics3", LLAMA, TOWER | {"num_hidden_layers": 2}, scale_factor=3, tie_word_embeddings=True),
    ),
    "smolvlm": (
        whole("SmolVLM", LLAMA, TOWER, scale_factor=2),
        whole("SmolVLM", LLAMA, TOWER | {"num_hidden_layers": 2}, scale_factor=3, tie_word_embeddings=True),
    ),
    "mistral3": (
        whole("Mistral3", MISTRAL, PIXTRAL, spatial_merge_size=2),
        whole(
            "Mistral3",
            MISTRAL,
            PIXTRAL,
            spatial_merge_size=3,
            multimodal_projector_bias=True,
            tie_word_embeddings=False,
        ),
    ),
    "internvl": (
        whole("InternVL", QWEN, INTERN),
        whole(
            "InternVL",
            QWEN,
            INTERN | {"attention_bias": True, "use_qk_norm": True, "norm_type": "rms_norm", "use_mask_token": True},
            tie_word_embeddings=False,
        ),
    ),
    "gemma3": (
        whole("Gemma3", GEMMA, SIGLIP, mm_tokens_per_image=9),
        whole("Gemma3", GEMMA | {"attention_bias": True}, SIGLIP | {"vision_use_head": False}, mm_tokens_per_image=9),
    ),
    "llama4": (
        whole("Llama4", SCOUT | {"interleave_moe_layer_step": 1}, SCOUT_TOWER),
        whole("Llama4", SCOUT | {"interleave_moe_layer_step": 2, "attention_bias": True}, SCOUT_TOWER),
    ),
    "llama4_text": (
        small(**SCOUT | {"interleave_moe_layer_step": 2}),
        small(**SCOUT | {"moe_layers": [0], "tie_word_embeddings": True}),
    ),
}
