"""ERNIE 4.5 with experts (the dense one is in `llama`)."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.blocks import LAYER, gated_mlp, gqa, linear, norm, param
from mlload.plan.architectures.decoder import decoder
from mlload.plan.architectures.draft import as_draft
from mlload.plan.architectures.memory import everywhere
from mlload.plan.architectures.moe_blocks import experts, moe_layers, router
from mlload.plan.params import ParamSpec


def moe(c: ConfigView) -> Iterator[ParamSpec]:
    """Experts in every `moe_layer_interval`-th layer between a first and a last one."""
    start, every = c.size("moe_layer_start_index"), c.size("moe_layer_interval") or 1
    last = c.get("moe_layer_end_index")
    end = last if isinstance(last, int) and last >= 0 else c.layers - 1  # -1 says "to the last layer"
    dense, sparse = moe_layers(c, lambda i: start <= i <= end and (i + 1) % every == 0)
    bias = c.flag("use_bias")
    if dense:
        yield from gated_mlp(c, dense, bias=bias)
    if not sparse:
        return
    yield router(c, sparse, dtype="F32")
    yield param(
        f"{LAYER}.mlp.moe_statics.e_score_correction_bias",
        (1, c.experts),
        sparse,
        engine=f"{LAYER}.mlp.gate.e_score_correction_bias",
        component="router",
        dtype="F32",
    )
    yield from experts(c, sparse)
    shared = c.size("moe_num_shared_experts") * c.size("moe_intermediate_size")
    if shared:
        yield from gated_mlp(
            c, sparse, root=f"{LAYER}.mlp.shared_experts", width=shared, bias=bias, component="shared_expert"
        )


def drafts(c: ConfigView) -> Iterator[ParamSpec]:
    """Dense layers that draft a further token, stored flat beside the model's own."""
    layers, block, bias = range(c.size("num_nextn_predict_layers")), "model.mtp_block.{layer}", c.flag("use_bias")
    if not layers:
        return
    yield norm("model.mtp_emb_norm.{layer}", c.hidden, layers)
    yield norm("model.mtp_hidden_norm.{layer}", c.hidden, layers)
    yield linear("model.mtp_linear_proj.{layer}", c.hidden, 2 * c.hidden, layers, bias=bias, quantized=False)
    yield norm(f"{block}.input_layernorm", c.hidden, layers)
    yield from gqa(
        c, layers, root=f"{block}.self_attn", qkv_bias=bias, out_bias=bias, wiring=f"{block}.input_layernorm"
    )
    yield norm(f"{block}.post_attention_layernorm", c.hidden, layers)
    yield from gated_mlp(c, layers, root=f"{block}.mlp", bias=bias, wiring=f"{block}.post_attention_layernorm")


_model = decoder(qkv_bias="use_bias", out_bias="use_bias", mlp=moe, head_bias="use_bias")


def build(c: ConfigView) -> Iterator[ParamSpec]:
    yield from _model(c)
    yield from as_draft(drafts(c))


ARCHITECTURES = (Architecture("ernie4_5_moe", build, everywhere),)
