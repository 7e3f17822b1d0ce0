"""Granite's mixtures, which store their experts stacked."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.blocks import LAYER, fused_gated_mlp
from mlload.plan.architectures.decoder import decoder
from mlload.plan.architectures.memory import everywhere
from mlload.plan.architectures.moe_blocks import router, stacked_experts
from mlload.plan.params import ParamSpec

MOE = f"{LAYER}.block_sparse_moe"


def moe(c: ConfigView) -> Iterator[ParamSpec]:
    layers = range(c.layers)
    yield router(c, layers, f"{MOE}.router.layer", engine=f"{MOE}.gate")
    yield from stacked_experts(
        c,
        layers,
        root=MOE,
        names=("input_linear", "output_linear"),
        width=c.intermediate,
        weight="weight",
        engine=f"{MOE}.experts.routed_experts",
    )


def moe_with_shared_expert(c: ConfigView) -> Iterator[ParamSpec]:
    yield from moe(c)
    width = c.size("shared_intermediate_size")
    if width:
        yield from fused_gated_mlp(
            c,
            range(c.layers),
            root=f"{LAYER}.shared_mlp",
            names=("input_linear", "output_linear"),
            width=width,
            component="shared_expert",
        )


ARCHITECTURES = (
    Architecture("granitemoe", decoder(qkv_bias="attention_bias", out_bias="attention_bias", mlp=moe), everywhere),
    Architecture(
        "granitemoeshared",
        decoder(qkv_bias="attention_bias", out_bias="attention_bias", mlp=moe_with_shared_expert),
        everywhere,
    ),
)
