"""What a case of test_architectures_transformers is, and the sizes that most of them share."""

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


def bare(**fields: Any) -> Case:
    """For classes whose fields have names of their own."""
    return Case({"vocab_size": 80, "pad_token_id": None, **fields})
