"""MiniMax M2: grouped-query attention with norms over all heads, and experts in every layer."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.blocks import LAYER, embedding, gqa, head, norm, param
from mlload.plan.architectures.memory import everywhere
from mlload.plan.architectures.moe_blocks import experts, router
from mlload.plan.params import ParamSpec, Part

MOE = LAYER + ".block_sparse_moe"


def minimax_m2(c: ConfigView) -> Iterator[ParamSpec]:
    layers, d = range(c.layers), c.head_dim
    yield embedding(c)
    yield norm(f"{LAYER}.input_layernorm", c.hidden, layers)
    yield from gqa(c, layers)
    if c.flag("use_qk_norm", True):
        root, kind = f"{LAYER}.self_attn", "MiniMaxText01RMSNormTP"
        q, k = Part("q", c.heads * d, d), Part("k", c.kv_heads * d, d, "kv")
        yield norm(f"{root}.q_norm", q.length, layers, kind=kind, style="column", parts=(q,))
        yield norm(f"{root}.k_norm", k.length, layers, kind=kind, style="column", parts=(k,))
    yield norm(f"{LAYER}.post_attention_layernorm", c.hidden, layers)
    # vLLM keeps router and bias in float32, whatever the checkpoint's dtype.
    yield router(c, layers, f"{MOE}.gate", dtype="F32")
    if c.flag("use_routing_bias", True):
        yield param(f"{MOE}.e_score_correction_bias", (c.experts,), layers, component="router", dtype="F32")
    yield from experts(c, layers, root=f"{MOE}.experts", names=("w1", "w3", "w2"), width=c.intermediate)
    yield norm("model.norm", c.hidden, stage="last")
    yield head(c)


ARCHITECTURES = (Architecture("minimax_m2", minimax_m2, everywhere),)
