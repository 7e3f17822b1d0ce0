"""One view of a config.json, whatever its author called things and wherever he put them.

Composite models nest the language model's fields ("text_config", "llm_config", ...); libraries
renamed keys over the years; and a model class fills what a config leaves out. Everything that
asks for a size asks here, under one set of names.

A config is somebody else's file: a field may hold any JSON value. What cannot be meant (a width
of "many", of -1, of 10**30) counts as absent, and `problems` tells it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# Where composite configs keep the language model, first match wins.
TEXT_KEYS = ("text_config", "llm_config", "language_config", "language_model", "thinker_config")
VISION_KEYS = ("vision_config", "vit_config", "visual_config", "vision_tower")
AUDIO_KEYS = ("audio_config", "audio_encoder_config")

# Canonical name -> the spellings that configs use for it.
ALIASES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "d_model", "dim", "embed_dim", "n_embed"),
    "num_hidden_layers": ("n_layer", "num_layers", "n_layers", "decoder_layers"),
    "num_attention_heads": ("n_head", "num_heads", "n_heads", "decoder_attention_heads"),
    "num_key_value_heads": ("n_head_kv", "num_kv_heads", "n_kv_heads", "multi_query_group_num"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size", "d_ff", "hidden_dim"),
    "vocab_size": ("padded_vocab_size", "n_vocab"),
    "max_position_embeddings": ("n_positions", "n_ctx", "seq_length", "max_seq_len", "max_sequence_length"),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts"),
    "num_experts_per_tok": (
        "num_experts_per_token",
        "experts_per_token",
        "moe_k",
        "moe_topk",
        "top_k_experts",
        "moe_top_k",
    ),
    "torch_dtype": ("dtype",),
    "rope_parameters": ("rope_scaling",),
    "num_nextn_predict_layers": ("mtp_num_hidden_layers", "num_mtp_layers"),
}

# The largest number that any size may be: beyond it a config is damaged, and loops over it would not end.
LIMITS = dict.fromkeys(
    (
        "num_hidden_layers",
        "num_nextn_predict_layers",
        "encoder_layers",
        "decoder_layers",
        "depth",
        "num_layers",
        "num_experts",
    ),
    4096,
)
LIMIT = 2**40


class Rope(NamedTuple):
    """Rotary positions of a model.

    type:     "default" (not scaled; also where a library filled the dict in without being asked), "linear", "dynamic",
              "yarn", "llama3", "longrope", ...
    spelled:  the key that the type was written under: "rope_type", or "type" before transformers 4.43; "" = none
    factor:   of the scaling
    theta:    base frequency
    original: context length before scaling
    """

    type: str
    spelled: str
    factor: float | None
    theta: float | None
    original: int | None

    @property
    def scaled(self) -> bool:
        return self.type != "default"


class ConfigView:
    """Fields of one model (the language model of a composite one) by canonical names.

    raw:        the dict as parsed
    text:       the dict that holds the language model's fields (raw itself for a plain model)
    model_type: of the whole
    problems:   fields asked for so far that hold what cannot be meant: name -> value as written
    """

    def __init__(self, raw: Any) -> None:
        self.raw: dict[str, Any] = raw if isinstance(raw, dict) else {}
        self.text: dict[str, Any] = _innermost(self.raw)
        self.problems: dict[str, Any] = {}

    @property
    def model_type(self) -> str:
        return str(self.raw.get("model_type") or "")

    @property
    def text_type(self) -> str:
        """Type of the language model. Where the nested dict names none, or repeats the composite's (published configs
        do), it is the type that the composite's class nests."""
        own = str(self.text.get("model_type") or self.model_type)
        return str(class_default(own, "text_model_type") or own)

    @property
    def architectures(self) -> tuple[str, ...]:
        value = self.raw.get("architectures")
        return tuple(v for v in value if isinstance(v, str)) if isinstance(value, list) else ()

    def given(self, name: str) -> Any:
        """A field by its canonical name, as somebody wrote it: under any spelling, nested first; None if nobody did."""
        for scope in (self.text, self.raw) if self.text is not self.raw else (self.raw,):
            for key in (name, *ALIASES.get(name, ())):
                if scope.get(key) is not None:
                    return scope[key]
        return None

    def default(self, name: str) -> Any:
        """What the model class puts where nothing is written. A written null is not nothing: it switches a field off
        (DeepSeek's `q_lora_rank`), so it has no default."""
        scope = self.text
        written = any(key in scope for key in (name, *ALIASES.get(name, ())))
        return None if written else class_default(self.text_type, name)

    def get(self, name: str, default: Any = None) -> Any:
        """A field as given, else as the model class would default it, else `default`."""
        value = self.given(name)
        if value is None:
            value = self.default(name)
        return default if value is None else value

    def size(self, name: str, default: int = 0) -> int:
        """A size or count; 0 <= value. Anything else counts as absent and is noted in `problems`."""
        value = self.given(name)
        if value is not None:
            number = _count(value, LIMITS.get(name, LIMIT))
            if number is not None:
                return number
            self.problems[name] = value
        number = _count(class_default(self.text_type, name) if value is not None else self.default(name), LIMIT)
        return default if number is None else number

    def flag(self, name: str, default: bool = False) -> bool:
        """A switch; numbers and strings are not switches."""
        value = self.given(name)
        if isinstance(value, bool):
            return value
        if value is not None:
            self.problems[name] = value
        value = class_default(self.text_type, name) if value is not None else self.default(name)
        return value if isinstance(value, bool) else default

    def items(self, name: str) -> list[Any]:
        """A list, [] when absent."""
        value = self.get(name)
        if value is None or isinstance(value, list):
            return value or []
        self.problems[name] = value
        return []

    def sub(self, keys: tuple[str, ...]) -> ConfigView | None:
        """A nested model's own view (VISION_KEYS, AUDIO_KEYS), or None."""
        return next((ConfigView(self.raw[k]) for k in keys if isinstance(self.raw.get(k), dict)), None)

    # Sizes that every decoder has.
    @property
    def hidden(self) -> int:
        return self.size("hidden_size")

    @property
    def layers(self) -> int:
        """As counted, or as many as a pattern names where the config holds no count (Nemotron-H)."""
        counted = self.size("num_hidden_layers")
        if counted:
            return counted
        pattern = self.get("layers_block_type") or self.get("hybrid_override_pattern")
        named = len(pattern) if isinstance(pattern, (list, str)) else 0
        return named if named <= LIMITS["num_hidden_layers"] else 0

    @property
    def heads(self) -> int:
        return self.size("num_attention_heads")

    @property
    def kv_heads(self) -> int:
        """Key and value heads. `multi_query` (Falcon, GPT-BigCode) means one, but for Falcon's later architecture."""
        if self.flag("multi_query") and not self.flag("new_decoder_architecture"):
            return 1
        return self.size("num_key_value_heads") or self.heads

    @property
    def head_dim(self) -> int:
        """At least 1: heads are units that lengths are divided by, also where a config gives nonsense."""
        return self.size("head_dim") or (self.hidden // self.heads if self.heads else 0) or 1

    @property
    def intermediate(self) -> int:
        return self.size("intermediate_size")

    @property
    def vocab(self) -> int:
        return self.size("vocab_size")

    @property
    def experts(self) -> int:
        return self.size("num_experts")

    @property
    def tied(self) -> bool:
        """Whether the output head is the input table. A composite model's own class ties, so its outer word counts
        before the nested one; absent in both, the class's default."""
        for word in self.tie_words:
            if word is not None:
                return word
        defaults = (class_default(kind, "tie_word_embeddings") for kind in (self.model_type, self.text_type))
        return next((value for value in defaults if isinstance(value, bool)), False)

    @property
    def tie_words(self) -> tuple[bool | None, bool | None]:
        """`tie_word_embeddings` as written, (outer, nested), None where it is not: readers differ in what they heed."""
        outer, nested = (scope.get("tie_word_embeddings") for scope in (self.raw, self.text))
        return (
            outer if isinstance(outer, bool) else None,
            nested if isinstance(nested, bool) and self.text is not self.raw else None,
        )

    @property
    def rope(self) -> Rope:
        """Rotary positions, under either name of the dict and either spelling of its type."""
        value = self.given("rope_parameters")
        fields: dict[str, Any] = value if isinstance(value, dict) else {}
        # One set per kind of layer (Gemma 3): the one that sees everything decides the context.
        fields = next((fields[k] for k in ("full_attention", "global") if isinstance(fields.get(k), dict)), fields)
        spelled = next((key for key in ("rope_type", "type") if isinstance(fields.get(key), str)), "")
        kind = fields[spelled] if spelled else "default"
        theta = fields.get("rope_theta", self.given("rope_theta"))
        return Rope(
            type=kind,
            spelled=spelled,
            factor=_number(fields.get("factor")),
            theta=_number(theta),
            original=_count(fields.get("original_max_position_embeddings"), LIMIT),
        )


def class_default(model_type: str, name: str) -> Any:
    """What transformers' config class for `model_type` puts where a config says nothing, or None."""
    from mlload.checkpoint.config_defaults import defaults_of

    return defaults_of(model_type).get(name)


def _innermost(raw: dict[str, Any]) -> dict[str, Any]:
    """The language model's own dict; composites of composites nest it twice (a thinker's text)."""
    found = raw
    for _ in range(2):
        found = next((found[key] for key in TEXT_KEYS if isinstance(found.get(key), dict)), found)
    return found


def _number(value: Any) -> float | None:
    finite = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if finite else None


def _count(value: Any, limit: int) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if value != value or not 0 <= value <= limit or int(value) != value:
        return None
    return int(value)
