"""Dense decoders."""

from __future__ import annotations

from tests.plan.architecture_cases.case import Case, small

CASES: dict[str, tuple[Case, ...]] = {
    "llama": (small(), small(head_dim=20, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    "mistral": (small(), small(head_dim=20, sliding_window=8, tie_word_embeddings=True)),
}
