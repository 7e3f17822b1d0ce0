"""Multi-head latent attention: low-rank projections, whose down-projections every rank holds whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.attention import AttentionSpec
from mlload.plan.architectures.blocks import LAYER, Layers, column, linear, norm, row
from mlload.plan.params import ParamSpec, Part

ATTENTION = LAYER + ".self_attn"


def mla(
    c: ConfigView,
    layers: Layers,
    *,
    root: str = ATTENTION,
    bias: bool = False,
    fused: bool = True,
    wiring: str | None = LAYER + ".input_layernorm",
    **fields: Any,
) -> Iterator[ParamSpec]:
    """q through a latent of q_lora_rank (or straight, where that is null), k and v through one of kv_lora_rank.

    fused: the engine stacks q_a_proj and kv_a_proj_with_mqa into one replicated layer where both exist
    """
    q_rank, kv_rank = c.size("q_lora_rank"), c.size("kv_lora_rank")
    nope, rope, v = c.size("qk_nope_head_dim"), c.size("qk_rope_head_dim"), c.size("v_head_dim")
    common: dict[str, Any] = {"component": "attention", **fields}
    down: dict[str, Any] = dict(common)
    if q_rank and fused:
        down |= {"engine": f"{root}.fused_qkv_a_proj", "kind": "DeepSeekV2FusedQkvAProjLinear"}
    if q_rank:
        yield linear(f"{root}.q_a_proj", q_rank, c.hidden, layers, bias=bias, wiring=wiring, **down)
        yield norm(f"{root}.q_a_layernorm", q_rank, layers, **fields)
    yield column(
        f"{root}.q_b_proj" if q_rank else f"{root}.q_proj",
        c.heads * (nope + rope),
        q_rank or c.hidden,
        layers,
        role="q",
        unit=nope + rope,
        wiring=f"{root}.q_a_layernorm" if q_rank else wiring,
        **common,
    )
    yield linear(f"{root}.kv_a_proj_with_mqa", kv_rank + rope, c.hidden, layers, bias=bias, wiring=wiring, **down)
    yield norm(f"{root}.kv_a_layernorm", kv_rank, layers, **fields)
    yield column(
        f"{root}.kv_b_proj",
        c.heads * (nope + v),
        kv_rank,
        layers,
        parts=(Part("kv", c.heads * (nope + v), nope + v),),
        wiring=f"{root}.kv_a_layernorm",
        **common,
    )
    yield row(f"{root}.o_proj", c.hidden, c.heads * v, layers, unit=v, bias=bias, wiring=f"{root}.kv_b_proj", **common)


def indexer(c: ConfigView, layers: Layers, *, root: str = ATTENTION + ".indexer", **fields: Any) -> Iterator[ParamSpec]:
    """Picks the positions that sparse attention looks at; whole on every rank, and wk and weights_proj never quantized
    by the engine."""
    count, d = c.size("index_n_heads"), c.size("index_head_dim")
    common: dict[str, Any] = {"component": "attention", **fields}
    fused: dict[str, Any] = {
        **common,
        "engine": f"{root}.wk_weights_proj",
        "kind": "MergedColumnParallelLinear",
        "quantized": False,
    }
    yield linear(f"{root}.wq_b", count * d, c.size("q_lora_rank"), layers, **common)
    yield linear(f"{root}.wk", d, c.hidden, layers, **fused)
    yield norm(f"{root}.k_norm", d, layers, bias=True, dtype="F32", **fields)
    yield linear(f"{root}.weights_proj", count, c.hidden, layers, **fused)


def latent(c: ConfigView, *, sparse: bool = False) -> AttentionSpec:
    """One latent vector a position, and the indexer's key where attention is sparse."""
    return AttentionSpec(
        "mla",
        range(c.layers),
        heads=c.heads,
        kv_heads=1,
        head_dim=c.size("qk_nope_head_dim") + c.size("qk_rope_head_dim"),
        v_head_dim=c.size("v_head_dim"),
        latent=c.size("kv_lora_rank") + c.size("qk_rope_head_dim"),
        index_dim=c.size("index_head_dim") if sparse else 0,
    )
