"""One view of a config.json, whatever its author called things and wherever he put them.

Composite models nest the language model's fields ("text_config", "llm_config", ...); libraries
renamed keys over the years; and a model class fills what a config leaves out. Everything that
asks for a size asks here, under one set of names.
"""

from __future__ import annotations

from typing import Any

# Where composite configs keep the language model, first match wins.
TEXT_KEYS = ("text_config", "llm_config", "language_config", "language_model", "thinker_config")
VISION_KEYS = ("vision_config", "vit_config", "visual_config", "vision_tower")
AUDIO_KEYS = ("audio_config", "audio_encoder_config")

# Canonical name -> the spellings that configs use for it.
ALIASES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "d_model", "dim", "embed_dim"),
    "num_hidden_layers": ("n_layer", "num_layers", "n_layers", "decoder_layers"),
    "num_attention_heads": ("n_head", "num_heads", "n_heads", "decoder_attention_heads"),
    "num_key_value_heads": ("n_head_kv", "num_kv_heads", "n_kv_heads", "multi_query_group_num"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size", "d_ff", "hidden_dim"),
    "vocab_size": ("padded_vocab_size", "n_vocab"),
    "max_position_embeddings": ("n_positions", "n_ctx", "seq_length", "max_seq_len", "max_sequence_length"),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts"),
    "num_experts_per_tok": ("num_experts_per_token", "moe_k", "moe_topk", "top_k_experts", "moe_top_k"),
    "torch_dtype": ("dtype",),
    "rope_parameters": ("rope_scaling",),
    "num_nextn_predict_layers": ("mtp_num_hidden_layers", "num_mtp_layers"),
}


class ConfigView:
    """Fields of one model (the language model of a composite one) by canonical names.

    raw:        the dict as parsed
    text:       the dict that holds the language model's fields (raw itself for a plain model)
    model_type: of the whole; `text_type` of the language model
    """

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.text: dict[str, Any] = next((raw[k] for k in TEXT_KEYS if isinstance(raw.get(k), dict)), raw)

    @property
    def model_type(self) -> str:
        return str(self.raw.get("model_type") or "")

    @property
    def text_type(self) -> str:
        return str(self.text.get("model_type") or self.model_type)

    @property
    def architectures(self) -> tuple[str, ...]:
        value = self.raw.get("architectures")
        return tuple(v for v in value if isinstance(v, str)) if isinstance(value, list) else ()

    def get(self, name: str, default: Any = None) -> Any:
        """A field by its canonical name: as given, under an older spelling, from the outer dict, or
        as the model class would default it."""
        for scope in (self.text, self.raw):
            for key in (name, *ALIASES.get(name, ())):
                if scope.get(key) is not None:
                    return scope[key]
        return default

    def sub(self, keys: tuple[str, ...]) -> ConfigView | None:
        """A nested model's own view (VISION_KEYS, AUDIO_KEYS), or None."""
        return next((ConfigView(self.raw[k]) for k in keys if isinstance(self.raw.get(k), dict)), None)

    # Sizes that every decoder has.
    @property
    def hidden(self) -> int:
        return int(self.get("hidden_size") or 0)

    @property
    def layers(self) -> int:
        return int(self.get("num_hidden_layers") or 0)

    @property
    def heads(self) -> int:
        return int(self.get("num_attention_heads") or 0)

    @property
    def kv_heads(self) -> int:
        return int(self.get("num_key_value_heads") or self.heads)

    @property
    def head_dim(self) -> int:
        return int(self.get("head_dim") or (self.hidden // self.heads if self.heads else 0))

    @property
    def intermediate(self) -> int:
        return int(self.get("intermediate_size") or 0)

    @property
    def vocab(self) -> int:
        return int(self.get("vocab_size") or 0)

    @property
    def experts(self) -> int:
        return int(self.get("num_experts") or 0)

    @property
    def tied(self) -> bool:
        return bool(self.get("tie_word_embeddings", False))
