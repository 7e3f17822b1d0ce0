"""Building blocks that architecture rows are made of: attention, MLP, experts, tables, norms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlload.checkpoint.config import ConfigView
from mlload.plan.params import ParamSpec, Part


def norm(module: str, size: int, layers: Sequence[int] | None = None, *, bias: bool = False) -> ParamSpec:
    return ParamSpec(
        module=module,
        op="norm",
        shape=(size,),
        axes=("N",),
        layers=layers,
        bias="bias" if bias else None,
        engine=module,
        kind="LayerNorm" if bias else "RMSNorm",
        component="norm",
    )


def gqa(
    c: ConfigView,
    layers: Sequence[int],
    *,
    root: str = "model.layers.{layer}.self_attn",
    qkv_bias: bool = False,
    out_bias: bool = False,
    out: str = "o_proj",
    qk_norm: bool = False,
) -> Iterator[ParamSpec]:
    """Grouped-query attention with q, k and v stored apart, fused by the engine."""
    d, hidden = c.head_dim, c.hidden
    for role, heads, cut in (("q", c.heads, "split"), ("k", c.kv_heads, "kv"), ("v", c.kv_heads, "kv")):
        yield ParamSpec(
            module=f"{root}.{role}_proj",
            op="linear",
            shape=(heads * d, hidden),
            axes=("N", "K"),
            style="column",
            parts=(Part(role, heads * d, d, cut),),
            bias="bias" if qkv_bias else None,
            layers=layers,
            engine=f"{root}.qkv_proj",
            kind="QKVParallelLinear",
            component="attention",
            quantized=True,
        )
    yield ParamSpec(
        module=f"{root}.{out}",
        op="linear",
        shape=(hidden, c.heads * d),
        axes=("N", "K"),
        style="row",
        parts=(Part("", c.heads * d, d),),
        bias="bias" if out_bias else None,
        layers=layers,
        engine=f"{root}.{out}",
        kind="RowParallelLinear",
        component="attention",
        quantized=True,
    )
    if qk_norm:
        yield norm(f"{root}.q_norm", d, layers)
        yield norm(f"{root}.k_norm", d, layers)
