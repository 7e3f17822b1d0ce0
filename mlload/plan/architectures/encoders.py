"""BERT and its relatives: tables of words, positions and types, post-norm layers, and the heads of the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures import vision
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.attention import AttentionSpec
from mlload.plan.architectures.blocks import column, linear, norm, param, row, table
from mlload.plan.architectures.composite import moved
from mlload.plan.params import ParamSpec

LAYER = "encoder.layer.{layer}"


def body(c: ConfigView) -> Iterator[ParamSpec]:
    """The encoder, named as in its own class. vLLM cuts all three tables by rows, positions and types included."""
    layers, width, d = range(c.layers), c.hidden, c.head_dim or 1
    tables = (
        ("word_embeddings", c.vocab),
        ("position_embeddings", c.size("max_position_embeddings")),
        ("token_type_embeddings", c.size("type_vocab_size")),
    )
    for name, count in tables:
        yield table(f"embeddings.{name}", count, width)
    yield norm("embeddings.LayerNorm", width, bias=True, stage="first")
    for name, role in (("query", "q"), ("key", "k"), ("value", "v")):
        yield column(
            f"{LAYER}.attention.self.{name}",
            width,
            width,
            layers,
            role=role,
            unit=d,
            bias=True,
            engine=f"{LAYER}.attention.self.qkv_proj",
            kind="QKVParallelLinear",
            component="attention",
        )
    yield row(f"{LAYER}.attention.output.dense", width, width, layers, unit=d, bias=True, component="attention")
    yield norm(f"{LAYER}.attention.output.LayerNorm", width, layers, bias=True)
    names = ("intermediate.dense", "output.dense")
    yield from vision.mlp(LAYER, layers, width, c.intermediate, names=names, component="mlp")
    yield norm(f"{LAYER}.output.LayerNorm", width, layers, bias=True)


def encoder(c: ConfigView, prefix: str) -> Iterator[ParamSpec]:
    """`body` under a prefix; the engine's is "model."."""
    return moved(body(c), (("", prefix),), (("", "model."),))


def pooler(prefix: str, width: int, *, kept: bool) -> ParamSpec:
    """A dense layer over the first token, which embedding models are saved with and do without."""
    fields: dict[str, Any] = {} if kept else {"engine": ""}
    found = linear(f"{prefix}pooler.dense", width, width, bias=True, component="head", stage="last", **fields)
    return replace(found, quantized=False, dtype="F32" if kept else None, kind="Linear")


def labels(c: ConfigView) -> int:
    named = c.get("id2label")
    return c.size("num_labels") or (len(named) if isinstance(named, dict) else 0) or 2


def dense(module: str, n: int, k: int, *, kind: str = "Linear", **fields: Any) -> ParamSpec:
    """A layer of a head; whole on every rank, never quantized. vLLM computes the heads of pooling models in float32."""
    found = linear(module, n, k, bias=True, component="head", stage="last", kind=kind, **fields)
    return replace(found, quantized=False)


def task(c: ConfigView) -> str:
    """What the class in `architectures` adds to the encoder."""
    name = c.architectures[0] if c.architectures else ""
    for ending in ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"):
        if name.endswith(ending):
            return ending
    return ""


def bert(c: ConfigView) -> Iterator[ParamSpec]:
    what = task(c)
    prefix = "bert." if what else ""
    yield from encoder(c, prefix)
    if what in ("", "ForSequenceClassification"):
        yield pooler(prefix, c.hidden, kept=bool(what))
    if what == "ForMaskedLM":
        root = "cls.predictions"
        yield dense(f"{root}.transform.dense", c.hidden, c.hidden)
        yield norm(f"{root}.transform.LayerNorm", c.hidden, bias=True, stage="last")
        yield param(f"{root}.bias", (c.vocab,), component="head", stage="last")
    elif what:
        yield dense("classifier", labels(c), c.hidden, kind="ReplicatedLinear", dtype="F32")


def roberta(c: ConfigView) -> Iterator[ParamSpec]:
    what = task(c)
    prefix = "roberta." if what else ""
    yield from encoder(c, prefix)
    if not what:
        yield pooler(prefix, c.hidden, kept=False)
    elif what == "ForMaskedLM":
        yield dense("lm_head.dense", c.hidden, c.hidden, engine="")
        yield norm("lm_head.layer_norm", c.hidden, bias=True, engine="", component="head")
        yield param("lm_head.bias", (c.vocab,), component="head", engine="")
    elif what == "ForSequenceClassification":
        yield dense("classifier.dense", c.hidden, c.hidden, dtype="F32")
        yield dense("classifier.out_proj", labels(c), c.hidden, dtype="F32")
    else:
        yield dense("classifier", labels(c), c.hidden, dtype="F32")


def memory(c: ConfigView) -> tuple[AttentionSpec, ...]:
    return (AttentionSpec("none", range(c.layers), heads=c.heads),)


def saved_either_way(model_type: str, build: Callable[[ConfigView], Iterator[ParamSpec]], prefix: str) -> Architecture:
    # Saved from the encoder's own class or from a task's, whatever `architectures` says.
    both = (("", prefix), *((prefix + part, part) for part in ("embeddings.", "encoder.", "pooler.")))
    return Architecture(model_type, build, memory, alternates=both)


ARCHITECTURES = (
    saved_either_way("bert", bert, "bert."),
    saved_either_way("roberta", roberta, "roberta."),
    saved_either_way("xlm-roberta", roberta, "roberta."),
    saved_either_way("camembert", roberta, "roberta."),
)
