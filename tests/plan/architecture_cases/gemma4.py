"""Gemma 4, with and without experts, embeddings per layer and towers."""

from __future__ import annotations

from typing import Any

from tests.plan.architecture_cases.case import SMALL, Case

TEXT: dict[str, Any] = SMALL | {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "head_dim": 10,
    "global_head_dim": 14,
    "num_global_key_value_heads": 1,
    "hidden_size_per_layer_input": 0,
}
VISION: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 6,
    "patch_size": 4,
    "position_embedding_size": 9,
}
AUDIO: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "output_proj_dims": 20,
    "subsampling_conv_channels": [8, 4],
}
MOE: dict[str, Any] = {
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 22,
    "attention_k_eq_v": True,
}
SHARED: dict[str, Any] = {
    "hidden_size_per_layer_input": 6,
    "vocab_size_per_layer_input": 72,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "attention_bias": True,
}
WHOLE = "Gemma4ForConditionalGeneration"

CASES: dict[str, tuple[Case, ...]] = {
    "gemma4": (
        Case({"text_config": TEXT | MOE, "vision_config": VISION | {"standardize": True}, "audio_config": None}, WHOLE),
        Case(
            {
                "text_config": TEXT | SHARED,
                "vision_config": VISION | {"use_clipped_linears": True},
                "audio_config": AUDIO,
            },
            WHOLE,
        ),
        Case(
            {
                "text_config": TEXT | {"layer_types": None, "num_hidden_layers": 7},
                "vision_config": VISION,
                "audio_config": AUDIO | {"use_clipped_linears": False},
            },
            WHOLE,
        ),
    ),
    "gemma4_text": (Case(TEXT | MOE), Case(TEXT | SHARED)),
}
