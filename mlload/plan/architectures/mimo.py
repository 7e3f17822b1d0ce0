"""MiMo: Qwen2 with layers that draft further tokens."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.blocks import gated_mlp, gqa, linear, norm
from mlload.plan.architectures.decoder import decoder
from mlload.plan.architectures.draft import as_draft
from mlload.plan.architectures.memory import everywhere
from mlload.plan.params import ParamSpec

DRAFT = "model.mtp_layers.{layer}"
model = decoder(qkv_bias=True)


def drafts(c: ConfigView) -> Iterator[ParamSpec]:
    layers = range(c.size("num_nextn_predict_layers"))
    if not layers:
        return
    for name in ("token_layernorm", "hidden_layernorm", "input_layernorm", "post_attention_layernorm"):
        yield norm(f"{DRAFT}.{name}", c.hidden, layers)
    yield linear(f"{DRAFT}.input_proj", c.hidden, 2 * c.hidden, layers, quantized=False)
    yield from gqa(c, layers, root=f"{DRAFT}.self_attn", qkv_bias=True, wiring=f"{DRAFT}.input_layernorm")
    yield from gated_mlp(c, layers, root=f"{DRAFT}.mlp", wiring=f"{DRAFT}.post_attention_layernorm")
    yield norm(f"{DRAFT}.final_layernorm", c.hidden, layers)


def build(c: ConfigView) -> Iterator[ParamSpec]:
    yield from model(c)
    yield from as_draft(drafts(c))


ARCHITECTURES = (Architecture("mimo", build, everywhere),)
