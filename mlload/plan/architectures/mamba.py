"""Mamba, Falcon-Mamba and Mamba2: state-space layers alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.attention import AttentionSpec
from mlload.plan.architectures.blocks import embedding, head, norm
from mlload.plan.architectures.composite import on_every_stage
from mlload.plan.architectures.mamba_blocks import Mamba1, Mamba2, mamba1, mamba1_state, mamba2, mamba2_state
from mlload.plan.params import ParamSpec

LAYER = "backbone.layers.{layer}"


def first(c: ConfigView) -> Mamba1:
    width = c.size("intermediate_size") or c.size("expand", 2) * c.hidden
    return Mamba1(
        hidden=c.hidden,
        width=width,
        state=c.size("state_size"),
        kernel=c.size("conv_kernel"),
        rank=c.size("time_step_rank") or -(-c.hidden // 16),
        bias=c.flag("use_bias"),
        conv_bias=c.flag("use_conv_bias", True),
    )


def second(c: ConfigView) -> Mamba2:
    return Mamba2(
        hidden=c.hidden,
        heads=c.size("num_heads"),
        head_dim=c.head_dim,
        groups=c.size("n_groups", 1),
        state=c.size("state_size"),
        kernel=c.size("conv_kernel"),
        width=c.size("expand", 2) * c.hidden,
        bias=c.flag("use_bias"),
        out_bias=c.flag("use_bias"),
        conv_bias=c.flag("use_conv_bias", True),
    )


def rows(mixer: Callable[[ConfigView], Iterator[ParamSpec]]) -> Callable[[ConfigView], Iterator[ParamSpec]]:
    def build(c: ConfigView) -> Iterator[ParamSpec]:
        found = [
            embedding(c, "backbone.embeddings"),
            norm(f"{LAYER}.norm", c.hidden, range(c.layers)),
            *mixer(c),
            norm("backbone.norm_f", c.hidden),
            head(c, tied_to="backbone.embeddings"),
        ]
        # vLLM builds what lies outside the layers on every stage (models/mamba.py:116, :134, :191).
        yield from on_every_stage(found, "embedding", "norm", "head")

    return build


def mixer1(c: ConfigView) -> Iterator[ParamSpec]:
    return mamba1(first(c), range(c.layers), root=f"{LAYER}.mixer", wiring=f"{LAYER}.norm")


def mixer2(c: ConfigView) -> Iterator[ParamSpec]:
    return mamba2(second(c), range(c.layers), root=f"{LAYER}.mixer", wiring=f"{LAYER}.norm")


def memory1(c: ConfigView) -> tuple[AttentionSpec, ...]:
    return (mamba1_state(first(c), range(c.layers)),)


def memory2(c: ConfigView) -> tuple[AttentionSpec, ...]:
    return (mamba2_state(second(c), range(c.layers)),)


ARCHITECTURES = (
    Architecture("mamba", rows(mixer1), memory1),
    Architecture("falcon_mamba", rows(mixer1), memory1),
    Architecture("mamba2", rows(mixer2), memory2),
)
