"""LFM2, dense and with experts: short convolutions in most layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.attention import AttentionSpec
from mlload.plan.architectures.blocks import LAYER, embedding, gated_mlp, gqa, head, norm, param
from mlload.plan.architectures.composite import on_every_stage
from mlload.plan.architectures.mamba_blocks import short_conv, short_conv_state
from mlload.plan.architectures.memory import kv, rest
from mlload.plan.architectures.moe_blocks import experts, router
from mlload.plan.params import ParamSpec

FEED_FORWARD = LAYER + ".feed_forward"
NAMES = ("w1", "w3", "w2")


def by_kind(c: ConfigView) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(layers with attention, with a convolution)."""
    kinds, indices = c.items("layer_types"), c.items("full_attn_idxs")
    full = tuple(i for i in range(c.layers) if (kinds[i : i + 1] == ["full_attention"] if kinds else i in indices))
    return full, rest(c, full)


def inner(c: ConfigView) -> int:
    """Width of the MLP: two thirds of what is given, rounded up, unless the config says to take it as it is."""
    width = c.size("block_ff_dim") or c.intermediate
    if not c.flag("block_auto_adjust_ff_dim", True):
        return width
    width = int(2 * width / 3)
    factor = c.get("block_ffn_dim_multiplier", 1.0)
    width = int(factor * width) if isinstance(factor, (int, float)) and 0 < factor < 1000 else width
    multiple = c.size("block_multiple_of", 256) or 1
    return multiple * -(-width // multiple)


def layers_of(c: ConfigView) -> Iterator[ParamSpec]:
    full, conv = by_kind(c)
    before = f"{LAYER}.operator_norm"
    yield norm(before, c.hidden, range(c.layers))
    if full:
        root = f"{LAYER}.self_attn"
        yield from gqa(c, full, out="out_proj", wiring=before)
        yield norm(f"{root}.q_layernorm", c.head_dim, full)
        yield norm(f"{root}.k_layernorm", c.head_dim, full)
    if conv:
        kernel, bias = c.size("conv_L_cache"), c.flag("conv_bias")
        yield from short_conv(f"{LAYER}.conv", c.hidden, kernel, conv, bias=bias, wiring=before)
    yield norm(f"{LAYER}.ffn_norm", c.hidden, range(c.layers))


def mlp(c: ConfigView, layers: Sequence[int], width: int) -> Iterator[ParamSpec]:
    yield from gated_mlp(
        c, layers, root=FEED_FORWARD, width=width, names=NAMES, fused="w13", wiring=f"{LAYER}.ffn_norm"
    )


def ends(c: ConfigView, inside: Iterator[ParamSpec]) -> Iterator[ParamSpec]:
    yield from on_every_stage([embedding(c)], "embedding")
    yield from inside
    yield norm("model.embedding_norm", c.hidden, stage="last")
    yield head(c)


def dense(c: ConfigView) -> Iterator[ParamSpec]:
    yield from ends(c, iter((*layers_of(c), *mlp(c, range(c.layers), inner(c)))))


def sparse(c: ConfigView) -> Iterator[ParamSpec]:
    first = min(c.size("num_dense_layers"), c.layers)
    plain, moe = range(first), range(first, c.layers)
    found = [*layers_of(c)]
    if plain:
        found += mlp(c, plain, c.intermediate)
    if moe:
        found.append(router(c, moe, f"{FEED_FORWARD}.gate"))
        if c.flag("use_expert_bias", True):
            engine = f"{FEED_FORWARD}.gate.e_score_correction_bias"
            bias = f"{FEED_FORWARD}.expert_bias"
            found.append(param(bias, (c.experts,), moe, component="router", dtype="F32", engine=engine))
        found += experts(c, moe, root=f"{FEED_FORWARD}.experts", names=NAMES, wiring=f"{LAYER}.ffn_norm")
    yield from ends(c, iter(found))


def memory(c: ConfigView) -> tuple[AttentionSpec, ...]:
    full, conv = by_kind(c)
    groups = (kv(c, full), short_conv_state(c.hidden, c.size("conv_L_cache"), conv))
    return tuple(group for group in groups if group.layers)


ARCHITECTURES = (
    Architecture("lfm2", dense, memory),
    Architecture("lfm2_moe", sparse, memory),
)
