"""Llama and the many that differ from it by a bias, a norm or a width."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.blocks import LAYER, embedding, gated_mlp, gqa, head, norm
from mlload.plan.architectures.memory import by_layer_types, everywhere
from mlload.plan.params import ParamSpec

Switch = bool | str


def on(c: ConfigView, switch: Switch) -> bool:
    """A switch of a row: fixed, or the name of the config field that decides."""
    return c.flag(switch) if isinstance(switch, str) else switch


def rows(
    *,
    qkv_bias: Switch = False,
    out_bias: Switch = False,
    mlp_bias: Switch = False,
    qk_norm: Switch = False,
) -> Callable[[ConfigView], Iterator[ParamSpec]]:
    """Pre-norm decoder with grouped-query attention and a gated MLP."""

    def build(c: ConfigView) -> Iterator[ParamSpec]:
        layers = range(c.layers)
        yield embedding(c)
        yield norm(f"{LAYER}.input_layernorm", c.hidden, layers)
        yield from gqa(c, layers, qkv_bias=on(c, qkv_bias), out_bias=on(c, out_bias), qk_norm=on(c, qk_norm))
        yield norm(f"{LAYER}.post_attention_layernorm", c.hidden, layers)
        yield from gated_mlp(c, layers, bias=on(c, mlp_bias))
        yield norm("model.norm", c.hidden, stage="last")
        yield head(c)

    return build


ARCHITECTURES = (
    Architecture("llama", rows(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias"), everywhere),
    Architecture("mistral", rows(), by_layer_types),
)
