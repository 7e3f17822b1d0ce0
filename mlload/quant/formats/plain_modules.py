"""Modules that quantizers leave in the model's dtype unless told otherwise.

Where there are no tensors to look at, these are what a declared method does not touch: engines build routers
without a quantization config, and embeddings, norms and the head are not of the class that methods take.
"""

from __future__ import annotations

ROUTERS = frozenset(
    {
        "gate",
        "router",
        "shared_expert_gate",
        "shared_experts_gate",
        "gate_network",
        "router_gate",
        "moe_gate",
        "e_score_correction_bias",
    }
)
HEADS = frozenset({"lm_head", "embed_out", "output_layer", "score", "classifier", "proj_out"})
EMBEDDINGS = frozenset(
    {
        "embed_tokens",
        "embed_positions",
        "embeddings",
        "wte",
        "wpe",
        "tok_embeddings",
        "word_embeddings",
        "position_embeddings",
        "token_type_embeddings",
        "embed_in",
        "token_embd",
        "embed",
    }
)
TOWERS = (
    "vision_tower",
    "vision_model",
    "visual",
    "vision_encoder",
    "vit_large_projector",
    "multi_modal_projector",
    "mm_projector",
    "audio_tower",
    "audio_model",
    "audio_encoder",
    "embed_vision",
    "embed_audio",
    "vision_embedder",
    "patch_embed",
)


def is_router(module: str) -> bool:
    parts = module.rsplit(".", 2)
    return parts[-1] in ROUTERS or (parts[-1] in {"layer", "linear", "classifier", "proj"} and "router" in parts)


def is_head(module: str) -> bool:
    return module.rpartition(".")[2] in HEADS or module == "output"


def is_table_or_norm(module: str) -> bool:
    last = module.rpartition(".")[2]
    return last in EMBEDDINGS or "norm" in last or last.startswith(("ln_", "rotary"))


def in_tower(module: str) -> bool:
    return any(name in TOWERS for name in module.split("."))


def left_plain(module: str, *, head: bool = False) -> bool:
    """Whether a module stays in the model's dtype under a method that does not name it.

    head: the method quantizes the output head too
    """
    if is_router(module) or is_table_or_norm(module) or module.endswith(("conv1d", ".indexer.weights_proj")):
        return True
    return not head and is_head(module)
