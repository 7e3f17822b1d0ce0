"""Draft layers for multi-token prediction, as checkpoints store them: decoder layers numbered after the model's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.blocks import LAYER, linear, norm, table
from mlload.plan.params import ParamSpec


def as_draft(specs: Iterable[ParamSpec]) -> Iterator[ParamSpec]:
    """The same modules, counted apart: engines build them for speculative decoding only."""
    for spec in specs:
        yield replace(spec, draft=True, component="draft", stage="last", optional=True)


def numbered_drafts(c: ConfigView, layers: Sequence[int], block: Iterable[ParamSpec]) -> Iterator[ParamSpec]:
    """`block` with what a draft layer has beside it: tables of its own, and the projection of [embedding, hidden]."""
    yield from as_draft(block)
    yield from as_draft(
        (
            table(f"{LAYER}.embed_tokens", c.vocab, c.hidden, layers=layers),
            norm(f"{LAYER}.enorm", c.hidden, layers),
            norm(f"{LAYER}.hnorm", c.hidden, layers),
            linear(f"{LAYER}.eh_proj", c.hidden, 2 * c.hidden, layers, quantized=False),
            norm(f"{LAYER}.shared_head.norm", c.hidden, layers),
            table(f"{LAYER}.shared_head.head", c.vocab, c.hidden, layers=layers, kind="ParallelLMHead"),
        )
    )
