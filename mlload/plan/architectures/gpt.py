"""GPT-2, GPT-J, GPT-NeoX and GPT-BigCode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.blocks import biased_head, embedding, fused_qkv, gqa, head, norm, param, plain_mlp, table
from mlload.plan.architectures.memory import everywhere
from mlload.plan.params import ParamSpec

H = "transformer.h.{layer}"
NEOX = "gpt_neox.layers.{layer}"


def width(c: ConfigView) -> int:
    """Of the MLP: `n_inner`, or four times the hidden size."""
    return c.intermediate or 4 * c.hidden


def mask(c: ConfigView, module: str) -> ParamSpec:
    """The causal mask that old versions of transformers saved in every layer."""
    size = c.size("max_position_embeddings")
    return param(module, (1, 1, size, size), range(c.layers), engine="", optional=True)


def gpt2(c: ConfigView) -> Iterator[ParamSpec]:
    """Its linears are Conv1D: stored [in, out]."""
    layers, conv1d = range(c.layers), ("K", "N")
    yield embedding(c, "transformer.wte")
    yield table("transformer.wpe", c.size("max_position_embeddings"), c.hidden, cut=False)
    yield norm(f"{H}.ln_1", c.hidden, layers, bias=True)
    yield mask(c, f"{H}.attn.bias")
    attention: dict[str, Any] = {"root": f"{H}.attn", "name": "c_attn", "out": "c_proj", "axes": conv1d}
    yield from fused_qkv(c, layers, kv_heads=c.heads, qkv_bias=True, out_bias=True, wiring=f"{H}.ln_1", **attention)
    yield norm(f"{H}.ln_2", c.hidden, layers, bias=True)
    yield from plain_mlp(
        c,
        layers,
        root=f"{H}.mlp",
        width=width(c),
        names=("c_fc", "c_proj"),
        axes=conv1d,
        wiring=f"{H}.ln_2",
    )
    yield norm("transformer.ln_f", c.hidden, bias=True, stage="last")
    yield head(c, tied_to="transformer.wte")


def gpt_bigcode(c: ConfigView) -> Iterator[ParamSpec]:
    """GPT-2 with ordinary linears and, with `multi_query`, a single key and value head."""
    layers = range(c.layers)
    yield embedding(c, "transformer.wte")
    yield table("transformer.wpe", c.size("max_position_embeddings"), c.hidden, cut=False)
    yield norm(f"{H}.ln_1", c.hidden, layers, bias=True)
    yield from fused_qkv(
        c,
        layers,
        root=f"{H}.attn",
        name="c_attn",
        out="c_proj",
        groups=1 if c.kv_heads == 1 else c.heads,
        qkv_bias=True,
        out_bias=True,
        wiring=f"{H}.ln_1",
    )
    yield norm(f"{H}.ln_2", c.hidden, layers, bias=True)
    yield from plain_mlp(c, layers, root=f"{H}.mlp", width=width(c), names=("c_fc", "c_proj"), wiring=f"{H}.ln_2")
    yield norm("transformer.ln_f", c.hidden, bias=True, stage="last")
    yield head(c, tied_to="transformer.wte")


def gptj(c: ConfigView) -> Iterator[ParamSpec]:
    """Attention and MLP side by side; a head with a bias."""
    layers = range(c.layers)
    yield embedding(c, "transformer.wte")
    yield norm(f"{H}.ln_1", c.hidden, layers, bias=True)
    yield mask(c, f"{H}.attn.bias")
    yield param(f"{H}.attn.masked_bias", (), layers, engine="", optional=True)
    yield from gqa(c, layers, root=f"{H}.attn", out="out_proj", kv_heads=c.heads, wiring=f"{H}.ln_1")
    yield from plain_mlp(c, layers, root=f"{H}.mlp", width=width(c), names=("fc_in", "fc_out"), wiring=f"{H}.ln_1")
    yield norm("transformer.ln_f", c.hidden, bias=True, stage="last")
    yield from biased_head(c, tied_to="transformer.wte")


def gpt_neox(c: ConfigView) -> Iterator[ParamSpec]:
    """q, k and v of each head in turn, in one tensor; the head is called embed_out."""
    layers, bias = range(c.layers), c.flag("attention_bias", True)
    yield embedding(c, "gpt_neox.embed_in")
    yield norm(f"{NEOX}.input_layernorm", c.hidden, layers, bias=True)
    yield mask(c, f"{NEOX}.attention.bias")
    yield param(f"{NEOX}.attention.masked_bias", (), layers, engine="", optional=True)
    rotated = int(c.head_dim * _rotary_share(c))
    yield param(f"{NEOX}.attention.rotary_emb.inv_freq", (rotated // 2,), layers, engine="", optional=True)
    yield from fused_qkv(
        c,
        layers,
        root=f"{NEOX}.attention",
        name="query_key_value",
        out="dense",
        kv_heads=c.heads,
        groups=c.heads,
        qkv_bias=bias,
        out_bias=bias,
        wiring=f"{NEOX}.input_layernorm",
    )
    yield norm(f"{NEOX}.post_attention_layernorm", c.hidden, layers, bias=True)
    yield from plain_mlp(
        c,
        layers,
        root=f"{NEOX}.mlp",
        names=("dense_h_to_4h", "dense_4h_to_h"),
        wiring=f"{NEOX}.post_attention_layernorm",
    )
    yield norm("gpt_neox.final_layer_norm", c.hidden, bias=True, stage="last")
    yield head(c, "embed_out", tied_to="gpt_neox.embed_in", engine="lm_head")


def _rotary_share(c: ConfigView) -> float:
    share = c.get("rotary_pct", c.get("partial_rotary_factor", 0.25))
    return share if isinstance(share, float) and 0 <= share <= 1 else 1.0


ARCHITECTURES = (
    # The first GPT-2 was published without the "transformer." that its class puts before every name.
    Architecture("gpt2", gpt2, everywhere, alternates=(("", "transformer."),)),
    Architecture("gpt_bigcode", gpt_bigcode, everywhere),
    Architecture("gptj", gptj, everywhere),
    Architecture("gpt_neox", gpt_neox, everywhere),
)
