"""Small models with vision or audio towers, as transformers makes them."""

from __future__ import annotations

from typing import Any

TEXT: dict[str, Any] = {
    "vocab_size": 80, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 64, "pad_token_id": None, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
EYE: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 16,
    "patch_size": 4, "num_channels": 3, "projection_dim": 24,
}  # fmt: skip
IMAGE = 70
TOWERS: dict[str, dict[str, Any]] = {
    "llava": {
        "model_type": "llava", "image_token_index": IMAGE, "text_config": {**TEXT, "model_type": "llama"},
        "vision_config": {**EYE, "model_type": "clip_vision_model"}, "tie_word_embeddings": False,
    },
    "gemma3": {
        "model_type": "gemma3", "image_token_index": IMAGE, "mm_tokens_per_image": 4,
        "text_config": {**TEXT, "model_type": "gemma3_text", "sliding_window": 32},
        "vision_config": {**EYE, "model_type": "siglip_vision_model", "vision_use_head": False},
    },
    "qwen2_vl": {
        "model_type": "qwen2_vl", "image_token_id": IMAGE, "vision_start_token_id": 71, "vision_end_token_id": 72,
        "tie_word_embeddings": False,
        "text_config": {
            **{key: value for key, value in TEXT.items() if key != "head_dim"}, "model_type": "qwen2_vl_text",
            "rope_parameters": {"rope_type": "default", "mrope_section": [2, 2, 2], "rope_theta": 10000.0},
        },
        "vision_config": {
            "depth": 2, "embed_dim": 32, "num_heads": 2, "hidden_size": 48, "mlp_ratio": 2, "patch_size": 4,
            "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3,
        },
    },
    "whisper": {
        "model_type": "whisper", "vocab_size": 80, "d_model": 48, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 56,
        "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 16, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3,
    },
}  # fmt: skip
