"""Dense decoders."""

from __future__ import annotations

from tests.plan.architecture_cases.case import Case, small

CASES: dict[str, tuple[Case, ...]] = {
    "llama": (small(), small(head_dim=20, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    "mistral": (small(), small(head_dim=20, sliding_window=8, tie_word_embeddings=True)),
    "ministral": (small(head_dim=12), small(head_dim=20, tie_word_embeddings=True)),
    "ministral3": (small(), small(head_dim=20, tie_word_embeddings=True)),
    "qwen2": (small(), small(tie_word_embeddings=True, use_sliding_window=True, max_window_layers=1)),
    "qwen3": (small(), small(head_dim=20, attention_bias=True, tie_word_embeddings=True)),
    "gemma": (small(), small(head_dim=20, attention_bias=True, tie_word_embeddings=False)),
    "gemma2": (small(), small(head_dim=20, attention_bias=True, tie_word_embeddings=False)),
    "gemma3_text": (small(), small(head_dim=20, attention_bias=True, tie_word_embeddings=False)),
    "granite": (small(), small(attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    "smollm3": (small(), small(attention_bias=True, mlp_bias=True, tie_word_embeddings=False)),
    "internlm3": (
        small(),
        small(head_dim=20, qkv_bias=True, bias=True, tie_word_embeddings=True),
        small(head_dim=None, num_key_value_heads=None),
    ),
    "seed_oss": (
        small(),
        small(head_dim=20, attention_bias=False, attention_out_bias=True, mlp_bias=True, tie_word_embeddings=True),
    ),
    "arcee": (small(), small(head_dim=20, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    "ernie4_5": (small(), small(head_dim=20, use_bias=True, tie_word_embeddings=False)),
    "exaone4": (small(), small(tie_word_embeddings=True, sliding_window=4, sliding_window_pattern=4)),
    "stablelm": (small(), small(use_qkv_bias=True, tie_word_embeddings=True)),
    "nemotron": (small(), small(head_dim=20, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    "starcoder2": (small(), small(use_bias=False, tie_word_embeddings=False, sliding_window=8)),
    "olmo": (small(), small(attention_bias=True, tie_word_embeddings=True)),
    "olmo2": (small(), small(attention_bias=True, tie_word_embeddings=True, num_key_value_heads=4)),
    "olmo3": (small(), small(attention_bias=True, tie_word_embeddings=True)),
}
