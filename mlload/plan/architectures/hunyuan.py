"""HunYuan 1, dense and with experts."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.blocks import LAYER, embedding, gated_mlp, gqa, head, norm
from mlload.plan.architectures.memory import everywhere
from mlload.plan.architectures.moe_blocks import experts, router
from mlload.plan.params import ParamSpec


def block(c: ConfigView) -> Iterator[ParamSpec]:
    layers, attention, bias = range(c.layers), f"{LAYER}.self_attn", c.flag("attention_bias")
    yield norm(f"{LAYER}.input_layernorm", c.hidden, layers)
    yield from gqa(c, layers, qkv_bias=bias, out_bias=bias)
    yield norm(f"{attention}.query_layernorm", c.head_dim, layers)
    yield norm(f"{attention}.key_layernorm", c.head_dim, layers)
    yield norm(f"{LAYER}.post_attention_layernorm", c.hidden, layers)


def dense(c: ConfigView) -> Iterator[ParamSpec]:
    yield embedding(c)
    yield from block(c)
    yield from gated_mlp(c, range(c.layers))
    yield norm("model.norm", c.hidden, stage="last")
    yield head(c)


def moe(c: ConfigView) -> Iterator[ParamSpec]:
    layers = range(c.layers)
    yield embedding(c)
    yield from block(c)
    yield router(c, layers, f"{LAYER}.mlp.gate.wg", engine=f"{LAYER}.mlp.gate")
    yield from experts(c, layers, width=c.intermediate)
    yield from gated_mlp(c, layers, root=f"{LAYER}.mlp.shared_mlp", component="shared_expert")
    yield norm("model.norm", c.hidden, stage="last")
    yield head(c)


ARCHITECTURES = (
    Architecture("hunyuan_v1_dense", dense, everywhere),
    Architecture("hunyuan_v1_moe", moe, everywhere),
)
