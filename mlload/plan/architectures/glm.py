"""GLM-4, dense and with experts (0414 and later; the older ones are in `chatglm`)."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.blocks import LAYER, embedding, gated_mlp, gqa, head, norm, param
from mlload.plan.architectures.decoder import decoder
from mlload.plan.architectures.draft import numbered_drafts
from mlload.plan.architectures.memory import everywhere
from mlload.plan.architectures.moe_blocks import experts, moe_layers, router
from mlload.plan.params import ParamSpec


def block(c: ConfigView, layers: range, dense: tuple[int, ...], sparse: tuple[int, ...]) -> Iterator[ParamSpec]:
    yield norm(f"{LAYER}.input_layernorm", c.hidden, layers)
    yield from gqa(c, layers, qkv_bias=c.flag("attention_bias"), qk_norm=c.flag("use_qk_norm"))
    yield norm(f"{LAYER}.post_attention_layernorm", c.hidden, layers)
    if dense:
        yield from gated_mlp(c, dense)
    if sparse:
        # The engine keeps the router in float32 whatever the files hold.
        yield router(c, sparse, dtype="F32")
        bias = f"{LAYER}.mlp.gate.e_score_correction_bias"
        yield param(bias, (c.experts,), sparse, component="router", dtype="F32")
        yield from experts(c, sparse)
        shared = c.size("n_shared_experts") * c.size("moe_intermediate_size")
        if shared:
            yield from gated_mlp(c, sparse, root=f"{LAYER}.mlp.shared_experts", width=shared, component="shared_expert")


def glm4_moe(c: ConfigView) -> Iterator[ParamSpec]:
    layers, first = range(c.layers), c.size("first_k_dense_replace")
    yield embedding(c)
    yield from block(c, layers, *moe_layers(c, lambda i: i >= first))
    yield norm("model.norm", c.hidden, stage="last")
    yield head(c)
    drafts = range(c.layers, c.layers + c.size("num_nextn_predict_layers"))
    if drafts:
        yield from numbered_drafts(c, drafts, block(c, drafts, (), tuple(drafts)))


ARCHITECTURES = (
    Architecture("glm", decoder(qkv_bias="attention_bias", mlp="fused"), everywhere),
    Architecture(
        "glm4",
        decoder(
            qkv_bias="attention_bias",
            after_attention=("post_self_attn_layernorm",),
            mlp="fused",
            after_mlp=("post_mlp_layernorm",),
        ),
        everywhere,
    ),
    Architecture("glm4_moe", glm4_moe, everywhere),
)
