"""Phi-1/2 and Phi-3/4 (Phi's mixture is in `mixtral`)."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.blocks import LAYER, biased_head, embedding, gqa, norm, plain_mlp
from mlload.plan.architectures.decoder import decoder
from mlload.plan.architectures.memory import by_layer_types, everywhere
from mlload.plan.params import ParamSpec


def phi(c: ConfigView) -> Iterator[ParamSpec]:
    """Attention and MLP side by side after one norm; biases everywhere, in the head too."""
    layers, before = range(c.layers), f"{LAYER}.input_layernorm"
    yield embedding(c)
    yield norm(before, c.hidden, layers, bias=True)
    yield from gqa(c, layers, qkv_bias=True, out_bias=True, out="dense", wiring=before)
    if c.flag("qk_layernorm"):
        for name in ("q_layernorm", "k_layernorm"):
            yield norm(f"{LAYER}.self_attn.{name}", c.head_dim, layers, bias=True)
    yield from plain_mlp(c, layers, wiring=before)
    yield norm("model.final_layernorm", c.hidden, bias=True, stage="last")
    yield from biased_head(c)


ARCHITECTURES = (
    Architecture("phi", phi, everywhere),
    Architecture("phi3", decoder(fused=True, mlp="fused"), by_layer_types),
)
