"""BERT and its relatives, Whisper, MiniMax M2."""

from __future__ import annotations

from typing import Any

from tests.plan.architecture_cases.case import Case, small

BERT: dict[str, Any] = {
    "vocab_size": 80,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 22,
    "type_vocab_size": 2,
}
WHISPER: dict[str, Any] = {
    "vocab_size": 80,
    "d_model": 48,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 44,
    "num_mel_bins": 10,
    "max_source_positions": 14,
    "max_target_positions": 12,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 3,
}
M2: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 10}


def of(name: str, **fields: Any) -> Case:
    return Case(BERT | {"architectures": [name]} | fields, name)


def modern(name: str, **fields: Any) -> Case:
    tokens = {f"{which}_token_id": i for i, which in enumerate(("pad", "bos", "eos", "cls", "sep"))}
    return of(name, **tokens, num_labels=3, **fields)


def relatives(stem: str) -> tuple[Case, ...]:
    return (
        of(f"{stem}Model", type_vocab_size=1),
        of(f"{stem}ForMaskedLM"),
        of(f"{stem}ForSequenceClassification", num_labels=3),
        of(f"{stem}ForTokenClassification", num_labels=5),
    )


CASES: dict[str, tuple[Case, ...]] = {
    "bert": relatives("Bert"),
    "roberta": relatives("Roberta"),
    "xlm-roberta": relatives("XLMRoberta"),
    "camembert": relatives("Camembert"),
    "modernbert": tuple(
        modern(f"ModernBert{what}", **fields)
        for what in ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
        for fields in ({}, {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True})
    ),
    "whisper": (
        Case(WHISPER, "WhisperForConditionalGeneration"),
        Case(WHISPER | {"encoder_layers": 2, "decoder_layers": 3, "vocab_size": 90}, "WhisperForConditionalGeneration"),
    ),
    "minimax_m2": (small(**M2), small(**M2, num_hidden_layers=2, tie_word_embeddings=True)),
}
