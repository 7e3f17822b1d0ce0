"""ModernBERT: rotary positions, windows in most layers, one tensor for q, k and v and one for gate and up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.blocks import column, linear, norm, param, row, table
from mlload.plan.architectures.composite import moved
from mlload.plan.architectures.encoders import labels, memory, task
from mlload.plan.architectures.vision import fused_attention
from mlload.plan.params import ParamSpec, Part

LAYER = "layers.{layer}"


def body(c: ConfigView) -> Iterator[ParamSpec]:
    layers, width, biased = range(c.layers), c.hidden, c.flag("norm_bias")
    yield table("embeddings.tok_embeddings", c.vocab, width)
    yield norm("embeddings.norm", width, bias=biased, kind="LayerNorm", stage="first")
    if c.layers > 1:
        # The first layer reads what the embedding's norm has made.
        yield norm(f"{LAYER}.attn_norm", width, range(1, c.layers), bias=biased, kind="LayerNorm")
    bias = c.flag("attention_bias")
    for spec in fused_attention(f"{LAYER}.attn", layers, width, c.heads, names=("Wqkv", "Wo"), bias=bias):
        yield replace(spec, component="attention")
    yield norm(f"{LAYER}.mlp_norm", width, layers, bias=biased, kind="LayerNorm")
    inner, bias = c.intermediate, c.flag("mlp_bias")
    halves = (Part("gate", inner), Part("up", inner))
    merged = "MergedColumnParallelLinear"
    yield column(f"{LAYER}.mlp.Wi", 2 * inner, width, layers, parts=halves, bias=bias, kind=merged, component="mlp")
    yield row(f"{LAYER}.mlp.Wo", width, inner, layers, bias=bias, component="mlp")
    yield norm("final_norm", width, bias=biased, kind="LayerNorm", stage="last")


def head(c: ConfigView, what: str) -> Iterator[ParamSpec]:
    """vLLM computes the heads of pooling models in float32, and has none for masked words."""
    engine: dict[str, Any] = {"engine": ""} if what == "ForMaskedLM" else {}
    bias = c.flag("classifier_bias")
    dense = linear("head.dense", c.hidden, c.hidden, bias=bias, component="head", kind="Linear", stage="last", **engine)
    yield replace(dense, quantized=False, dtype="F32")
    biased = c.flag("norm_bias")
    yield norm("head.norm", c.hidden, bias=biased, kind="LayerNorm", stage="last", component="head", **engine)
    if what == "ForMaskedLM":
        if c.flag("decoder_bias", True):
            yield param("decoder.bias", (c.vocab,), component="head", stage="last", **engine)
        return
    found = linear("classifier", labels(c), c.hidden, bias=True, component="head", kind="Linear", stage="last")
    yield replace(found, quantized=False, dtype="F32")


def modernbert(c: ConfigView) -> Iterator[ParamSpec]:
    what = task(c)
    yield from moved(body(c), (("", "model." if what else ""),), (("", "model."),))
    if what:
        yield from head(c, what)


# Saved from the encoder's own class or from a task's, whatever `architectures` says.
EITHER_WAY = (("", "model."), *((f"model.{part}", part) for part in ("embeddings.", "layers.", "final_norm")))

ARCHITECTURES = (Architecture("modernbert", modernbert, memory, alternates=EITHER_WAY),)
