"""Apertus: a plain MLP whose activation has parameters."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.blocks import LAYER, param, plain_mlp
from mlload.plan.architectures.decoder import decoder
from mlload.plan.architectures.memory import everywhere
from mlload.plan.params import ParamSpec


def mlp(c: ConfigView) -> Iterator[ParamSpec]:
    layers, activation = range(c.layers), f"{LAYER}.mlp.act_fn"
    yield from plain_mlp(
        c, layers, names=("up_proj", "down_proj"), bias=c.flag("mlp_bias"), wiring=f"{LAYER}.feedforward_layernorm"
    )
    if c.get("hidden_act", "xielu") == "xielu":
        for name in ("alpha_p", "alpha_n"):
            yield param(f"{activation}.{name}", (1,), layers, component="mlp")
        # Constants: the engine keeps them as buffers.
        for name in ("beta", "eps"):
            yield param(f"{activation}.{name}", (), layers, component="mlp", engine="")


ARCHITECTURES = (
    Architecture(
        "apertus",
        decoder(
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            qk_norm=True,
            before_attention="attention_layernorm",
            before_mlp="feedforward_layernorm",
            mlp=mlp,
        ),
        everywhere,
    ),
)
