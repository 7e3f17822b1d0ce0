"""Small configs for every covered model type: data of test_architectures_transformers."""

from __future__ import annotations

from typing import Any, NamedTuple


class Case(NamedTuple):
    """config: fields beside model_type; class_name: transformers class, None = the causal LM of the type."""

    config: dict[str, Any]
    class_name: str | None = None


# Every size differs, so that swapped dims show: 4 heads of 16 over hidden 48, 2 KV heads, 40 wide, 3 layers.
SMALL: dict[str, Any] = {
    "vocab_size": 80,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": None,
}


def small(**fields: Any) -> Case:
    class_name = fields.pop("class_name", None)
    return Case({**SMALL, **fields}, class_name)


CASES: dict[str, tuple[Case, ...]] = {
    "llama": (small(), small(head_dim=20, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    "mistral": (small(), small(head_dim=20, sliding_window=8, tie_word_embeddings=True)),
}
