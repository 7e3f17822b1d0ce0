"""Qwen2 and Qwen3, dense and with experts."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.attention import AttentionSpec
from mlload.plan.architectures.blocks import LAYER, gated_mlp, linear
from mlload.plan.architectures.decoder import decoder
from mlload.plan.architectures.memory import split
from mlload.plan.architectures.moe_blocks import experts, moe_layers, router
from mlload.plan.params import ParamSpec


def sparse_layers(c: ConfigView) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(dense, with experts): every `decoder_sparse_step`-th layer but those in `mlp_only_layers`."""
    step = c.size("decoder_sparse_step") or 1
    dense = c.items("mlp_only_layers")
    return moe_layers(c, lambda i: c.experts > 0 and i not in dense and (i + 1) % step == 0)


def moe(c: ConfigView) -> Iterator[ParamSpec]:
    dense, sparse = sparse_layers(c)
    if dense:
        yield from gated_mlp(c, dense)
    if sparse:
        yield router(c, sparse)
        yield from experts(c, sparse)


def moe_with_shared_expert(c: ConfigView) -> Iterator[ParamSpec]:
    yield from moe(c)
    _, sparse = sparse_layers(c)
    if sparse:
        yield from gated_mlp(
            c,
            sparse,
            root=f"{LAYER}.mlp.shared_expert",
            width=c.size("shared_expert_intermediate_size"),
            component="shared_expert",
        )
        yield linear(f"{LAYER}.mlp.shared_expert_gate", 1, c.hidden, sparse, quantized=False, component="shared_expert")


def memory(c: ConfigView) -> tuple[AttentionSpec, ...]:
    """A window in the layers from `max_window_layers` on, where `use_sliding_window` says so."""
    window = c.size("sliding_window") if c.flag("use_sliding_window") else 0
    types = c.items("layer_types")
    if types:
        return split(c, [i for i, t in enumerate(types) if t == "sliding_attention"], window)
    return split(c, range(c.size("max_window_layers"), max(c.layers, c.size("max_window_layers"))), window)


ARCHITECTURES = (
    Architecture("qwen2", decoder(qkv_bias=True), memory),
    Architecture("qwen2_moe", decoder(qkv_bias="qkv_bias", mlp=moe_with_shared_expert), memory),
    Architecture("qwen3", decoder(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=True), memory),
    Architecture(
        "qwen3_moe", decoder(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=True, mlp=moe), memory
    ),
)
