"""The decoder that most model types are: attention and an MLP per layer, told apart by a few switches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.blocks import (
    LAYER,
    Layers,
    biased_head,
    embedding,
    fused_gated_mlp,
    fused_qkv,
    gated_mlp,
    gqa,
    head,
    norm,
    param,
    plain_mlp,
)
from mlload.plan.params import ParamSpec

# Fixed, or the name of the config field that decides (the first that is set, of several).
Switch = bool | str | tuple[str, ...]
Mlp = Callable[[ConfigView], Iterator[ParamSpec]]


def on(c: ConfigView, switch: Switch) -> bool:
    """Whether a switch is on for this config."""
    if isinstance(switch, bool):
        return switch
    names = (switch,) if isinstance(switch, str) else switch
    return c.flag(next((name for name in names if c.given(name) is not None), names[0]))


def decoder(
    *,
    qkv_bias: Switch = False,
    out_bias: Switch = False,
    fused: bool = False,
    out: str = "o_proj",
    qk_norm: Switch = False,
    whole_qk_norm: bool = False,
    before_attention: str | None = "input_layernorm",
    after_attention: tuple[str, ...] = (),
    before_mlp: str | None = "post_attention_layernorm",
    after_mlp: tuple[str, ...] = (),
    norms: bool = True,
    norm_bias: bool = False,
    mlp: str | Mlp = "gated",
    mlp_names: tuple[str, str] = ("fc1", "fc2"),
    mlp_bias: Switch = False,
    final_norm: str = "model.norm",
    head_bias: Switch = False,
    own_head: bool = True,
    rotary_tables: bool = False,
) -> Callable[[ConfigView], Iterator[ParamSpec]]:
    """A table whose modules lie under "model." and "model.layers.{layer}.".

    fused:            q, k and v in one tensor
    qk_norm:          a norm over each head of q and k, called q_norm and k_norm
    whole_qk_norm:    ... over all heads at once
    before_attention: norm whose output attention reads, None where it reads the residual stream itself
    before_mlp:       the same for the MLP; equal to `before_attention` in parallel blocks
    after_*:          further norms, of the block's output
    norms:            False where norms have no weights
    mlp:              "gated", "fused" (gate and up in one tensor), "plain", or what yields the MLP's modules
    mlp_names:        of a plain MLP
    rotary_tables:    old files hold a table of rotary frequencies in every layer, which nobody reads
    own_head:         False where the engine's class uses the input table and leaves a stored head unread
    """
    order = [before_attention, *after_attention, before_mlp, *after_mlp]
    names = [name for name in dict.fromkeys(order) if name] if norms else []

    def build(c: ConfigView) -> Iterator[ParamSpec]:
        layers: Layers = range(c.layers)
        attention_input = f"{LAYER}.{before_attention}" if before_attention and norms else None
        mlp_input = f"{LAYER}.{before_mlp}" if before_mlp and norms else None
        common: dict[str, Any] = {"qkv_bias": on(c, qkv_bias), "out_bias": on(c, out_bias), "out": out}
        yield embedding(c)
        for name in names:
            yield norm(f"{LAYER}.{name}", c.hidden, layers, bias=norm_bias)
        if fused:
            yield from fused_qkv(c, layers, wiring=attention_input, **common)
        else:
            yield from gqa(c, layers, wiring=attention_input, qk_norm=on(c, qk_norm), **common)
        if whole_qk_norm:
            yield norm(f"{LAYER}.self_attn.q_norm", c.heads * c.head_dim, layers)
            yield norm(f"{LAYER}.self_attn.k_norm", c.kv_heads * c.head_dim, layers)
        if callable(mlp):
            yield from mlp(c)
        elif mlp == "gated":
            yield from gated_mlp(c, layers, bias=on(c, mlp_bias), wiring=mlp_input)
        elif mlp == "fused":
            yield from fused_gated_mlp(c, layers, bias=on(c, mlp_bias), wiring=mlp_input)
        else:
            yield from plain_mlp(c, layers, names=mlp_names, bias=on(c, mlp_bias), wiring=mlp_input)
        if norms:
            yield norm(final_norm, c.hidden, bias=norm_bias, stage="last")
        if rotary_tables:
            table = f"{LAYER}.self_attn.rotary_emb.inv_freq"
            yield param(table, (c.head_dim // 2,), layers, engine="", optional=True, component="attention")
        if on(c, head_bias):
            yield from biased_head(c)
        else:
            yield head(c) if own_head else head(c, engine="", kind="")

    return build
