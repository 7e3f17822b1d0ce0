"""What a module probably is, by the last part of its name: for model types that have no table."""

from __future__ import annotations

from typing import Literal, NamedTuple

Job = Literal["q", "k", "v", "qkv", "out", "gate", "up", "gate_up", "down", "table", "head", "router", "rotary", ""]

LEAVES: dict[Job, tuple[str, ...]] = {
    "q": ("q_proj", "wq", "query", "q_lin", "q", "attn_q"),
    "k": ("k_proj", "wk", "key", "k_lin", "k", "attn_k"),
    "v": ("v_proj", "wv", "value", "v_lin", "v", "attn_v"),
    "qkv": ("qkv_proj", "query_key_value", "c_attn", "Wqkv", "wqkv", "W_pack", "qkv", "in_proj_qkv", "attn_qkv"),
    "out": ("o_proj", "out_proj", "wo", "Wo", "dense", "o", "out_lin", "proj", "attn_output"),
    "gate": ("gate_proj", "w1", "wi_0", "ffn_gate", "ffn_gate_exps", "ffn_gate_shexp"),
    "up": (
        "up_proj",
        "w3",
        "wi_1",
        "fc1",
        "fc_in",
        "dense_h_to_4h",
        "c_fc",
        "wi",
        "lin1",
        "linear_fc1",
        "ffn_up",
        "ffn_up_exps",
        "ffn_up_shexp",
    ),
    "gate_up": ("gate_up_proj", "w13", "gate_and_up_proj", "Wi", "input_linear"),
    "down": (
        "down_proj",
        "w2",
        "fc2",
        "fc_out",
        "dense_4h_to_h",
        "lin2",
        "linear_fc2",
        "output_linear",
        "ffn_down",
        "ffn_down_exps",
        "ffn_down_shexp",
    ),
    "table": ("embed_tokens", "wte", "word_embeddings", "tok_embeddings", "embed_in", "token_embd", "embedding"),
    "head": ("lm_head", "embed_out", "output_layer", "output", "head"),
    "router": ("router", "gate", "wg", "gate_inp", "ffn_gate_inp"),
    "rotary": ("inv_freq",),
}
JOBS: dict[str, Job] = {leaf: job for job, leaves in LEAVES.items() for leaf in leaves}

ATTENTION_WORDS = ("attn", "attention")
EXPERT_WORDS = ("experts", "expert")
SHARED_WORDS = ("shared_expert", "shared_experts", "shared_mlp", "shared")
VISION_WORDS = ("vision", "visual", "vit", "image")
AUDIO_WORDS = ("audio", "speech")
DRAFT_WORDS = ("mtp", "nextn")


class Guess(NamedTuple):
    """job: "" where the name says nothing; component: as in ParamSpec; tower: outside the language model."""

    job: Job
    component: str
    tower: bool = False
    draft: bool = False


def guess(module: str) -> Guess:
    """What the module at this path probably is ("model.layers.{layer}.mlp.experts.{expert}.w1")."""
    words = module.split(".")
    leaf, path = words[-1], words[:-1]
    job: Job = JOBS.get(leaf, "")
    in_attention = _mentions(path, ATTENTION_WORDS) or leaf.startswith("attn_")
    if leaf == "c_proj":
        job = "out" if in_attention else "down"
    elif job == "out" and not in_attention:
        job = "down" if leaf == "wo" else ""
    elif (job in ("q", "k", "v") and len(leaf) == 1 and not in_attention) or (job == "head" and "{layer}" in path):
        job = ""
    if job == "router" and in_attention:
        job = ""
    draft = _mentions(words, DRAFT_WORDS)
    for tower, component in ((VISION_WORDS, "vision"), (AUDIO_WORDS, "audio")):
        if _mentions(words, tower):
            return Guess(job, component, tower=True, draft=draft)
    return Guess(job, _component(job, words, in_attention), draft=draft)


def _component(job: Job, words: list[str], in_attention: bool) -> str:
    if _mentions(words, SHARED_WORDS) or words[-1].endswith("_shexp"):
        return "shared_expert"
    if any(word in EXPERT_WORDS for word in words) or words[-1].endswith("_exps"):
        return "experts"
    if job in ("table", "head", "router"):
        return {"table": "embedding"}.get(job, job)
    if in_attention or job in ("q", "k", "v", "qkv", "out"):
        return "attention"
    return "mlp" if job in ("gate", "up", "gate_up", "down") else "other"


def _mentions(words: list[str], needles: tuple[str, ...]) -> bool:
    return any(needle in word.lower() for word in words for needle in needles)
