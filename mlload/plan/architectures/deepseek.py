"""DeepSeek V2, V3, V3.2 and what is built like them: Kimi K2, GLM-5."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.attention import AttentionSpec
from mlload.plan.architectures.blocks import LAYER, embedding, gated_mlp, head, norm, param
from mlload.plan.architectures.draft import numbered_drafts
from mlload.plan.architectures.memory import rest
from mlload.plan.architectures.mla import indexer, latent, mla
from mlload.plan.architectures.moe_blocks import experts, moe_layers, router
from mlload.plan.params import ParamSpec

Build = Callable[[ConfigView], Iterator[ParamSpec]]


def sparse_layers(c: ConfigView) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(dense layers, layers with experts)."""
    kinds = c.items("mlp_layer_types")
    if kinds:
        return moe_layers(c, lambda i: i < len(kinds) and kinds[i] == "sparse")
    first, every = c.size("first_k_dense_replace"), c.size("moe_layer_freq") or 1
    return moe_layers(c, lambda i: i >= first and i % every == 0)


def indexed_layers(c: ConfigView) -> tuple[int, ...]:
    """Layers with an indexer of their own; the others reuse the choice of an earlier layer."""
    pattern = c.items("indexer_types") or list(str(c.get("index_topk_pattern") or ""))
    if pattern:
        return tuple(i for i in range(min(c.layers, len(pattern))) if pattern[i] in ("full", "F"))
    every, offset = c.size("index_topk_freq") or 1, c.size("index_skip_topk_offset", 2)
    return tuple(i for i in range(c.layers) if max(i - offset + 1, 0) % every == 0)


def block(
    c: ConfigView, layers: Sequence[int], dense: Sequence[int], sparse: Sequence[int], *, correction: bool
) -> Iterator[ParamSpec]:
    """Attention and feed-forward of some layers. correction: the router has a bias for choosing, in float32."""
    yield norm(f"{LAYER}.input_layernorm", c.hidden, layers)
    yield from mla(c, layers, bias=c.flag("attention_bias"))
    yield norm(f"{LAYER}.post_attention_layernorm", c.hidden, layers)
    if dense:
        yield from gated_mlp(c, dense)
    if sparse:
        yield router(c, sparse)
        if correction:
            bias = f"{LAYER}.mlp.gate.e_score_correction_bias"
            yield param(bias, (c.experts,), sparse, component="router", dtype="F32")
        yield from experts(c, sparse)
        shared = c.size("n_shared_experts") * c.size("moe_intermediate_size")
        if shared:
            yield from gated_mlp(c, sparse, root=f"{LAYER}.mlp.shared_experts", width=shared, component="shared_expert")


def draft_layers(c: ConfigView, *, correction: bool, indexed: bool) -> Iterator[ParamSpec]:
    """Multi-token prediction: decoder layers numbered after the model's own, each with tables of its own."""
    layers = range(c.layers, c.layers + c.size("num_nextn_predict_layers"))
    if not layers:
        return
    # A draft layer is a sparse one, whatever the pattern of the model's own layers.
    found = [*block(c, layers, (), layers if c.experts else (), correction=correction)]
    found += indexer(c, layers) if indexed else ()
    yield from numbered_drafts(c, layers, found)


def rows(*, always_corrected: bool = False, indexed: bool = False) -> Build:
    """always_corrected: the class has a correction bias whatever `topk_method` says."""

    def build(c: ConfigView) -> Iterator[ParamSpec]:
        correction = always_corrected or c.get("topk_method") == "noaux_tc"
        dense, sparse = sparse_layers(c)
        yield embedding(c)
        yield from block(c, range(c.layers), dense, sparse, correction=correction)
        if indexed:
            yield from indexer(c, indexed_layers(c))
        yield norm("model.norm", c.hidden, stage="last")
        yield head(c)
        yield from draft_layers(c, correction=correction, indexed=indexed)

    return build


def dense_memory(c: ConfigView) -> tuple[AttentionSpec, ...]:
    return (latent(c),)


def sparse_memory(c: ConfigView) -> tuple[AttentionSpec, ...]:
    own = indexed_layers(c)
    whole = latent(c, sparse=True)
    others = rest(c, own)
    if not others:
        return (whole,)
    return (whole._replace(layers=own), latent(c)._replace(layers=others))


ARCHITECTURES = (
    Architecture("deepseek_v2", rows(), dense_memory),
    Architecture("deepseek_v3", rows(always_corrected=True), dense_memory),
    Architecture("kimi_k2", rows(always_corrected=True), dense_memory),
    Architecture("deepseek_v32", rows(always_corrected=True, indexed=True), sparse_memory),
    Architecture("glm_moe_dsa", rows(always_corrected=True, indexed=True), sparse_memory),
)
