"""Whisper: an encoder of sound and a decoder that attends to itself and to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.attention import AttentionSpec, StateSpec
from mlload.plan.architectures.blocks import column, norm, param, row, table
from mlload.plan.architectures.composite import tower
from mlload.plan.architectures.vision import mlp
from mlload.plan.params import ParamSpec, Part

# k has no bias; where vLLM fuses k with what has one it allocates one for k too.
NAMES = ("q_proj", "k_proj", "v_proj")


def attention(root: str, layers: range, width: int, heads: int, *, cross: bool = False) -> Iterator[ParamSpec]:
    """cross: q by itself, k and v fused."""
    d = (width // heads if heads else 0) or 1
    for name in NAMES:
        role, fused = name[0], "kv_proj" if cross else "qkv_proj"
        kind = "MergedColumnParallelLinear" if cross else "QKVParallelLinear"
        alone = cross and role == "q"
        yield column(
            f"{root}.{name}",
            width,
            width,
            layers,
            role=role,
            unit=d,
            bias=role != "k",
            engine=f"{root}.{name if alone else fused}",
            kind="ColumnParallelLinear" if alone else kind,
            component="attention",
        )
    engine = f"{root}.{'kv_proj' if cross else 'qkv_proj'}.bias"
    whole = param(f"{root}.k_proj.bias", (width,), layers, axes=("N",), engine=engine, component="attention")
    yield replace(whole, style="column", parts=(Part("k", width, d),), engine_only=True)
    yield row(f"{root}.out_proj", width, width, layers, unit=d, bias=True, component="attention")


def conv(module: str, width: int, inputs: int) -> ParamSpec:
    return ParamSpec(
        module=module,
        op="conv",
        shape=(width, inputs, 3),
        axes=("N", "K", ""),
        bias="bias",
        engine=module,
        kind="Conv1d",
    )


def encoder(c: ConfigView) -> Iterator[ParamSpec]:
    width, layers = c.hidden, range(c.size("encoder_layers"))
    root = "model.encoder.layers.{layer}"
    yield conv("model.encoder.conv1", width, c.size("num_mel_bins"))
    yield conv("model.encoder.conv2", width, width)
    yield table("model.encoder.embed_positions", c.size("max_source_positions"), width, cut=False)
    yield norm(f"{root}.self_attn_layer_norm", width, layers, bias=True)
    yield from attention(f"{root}.self_attn", layers, width, c.size("encoder_attention_heads"))
    yield norm(f"{root}.final_layer_norm", width, layers, bias=True)
    for spec in mlp(root, layers, width, c.size("encoder_ffn_dim")):
        yield replace(spec, engine=spec.engine.replace(".fc", ".mlp.fc"))
    yield norm("model.encoder.layer_norm", width, bias=True)


def decoder(c: ConfigView) -> Iterator[ParamSpec]:
    width, layers, heads = c.hidden, range(c.size("decoder_layers")), c.size("decoder_attention_heads")
    root = "model.decoder.layers.{layer}"
    yield table("model.decoder.embed_tokens", c.vocab, width, cut=False, stage="all")
    yield table("model.decoder.embed_positions", c.size("max_target_positions"), width, cut=False, stage="all")
    yield norm(f"{root}.self_attn_layer_norm", width, layers, bias=True)
    yield from attention(f"{root}.self_attn", layers, width, heads)
    yield norm(f"{root}.encoder_attn_layer_norm", width, layers, bias=True)
    yield from attention(f"{root}.encoder_attn", layers, width, heads, cross=True)
    yield norm(f"{root}.final_layer_norm", width, layers, bias=True)
    for spec in mlp(root, layers, width, c.size("decoder_ffn_dim"), component="mlp"):
        yield replace(spec, engine=spec.engine.replace(".fc", ".mlp.fc"))
    yield norm("model.decoder.layer_norm", width, bias=True, stage="all")


def whisper(c: ConfigView) -> Iterator[ParamSpec]:
    yield from tower(encoder(c), "audio")
    yield from decoder(c)
    # The class always ties the head, and vLLM shares the table with it whole, without padding.
    head = table("proj_out", c.vocab, c.hidden, cut=False, component="head", kind="ParallelLMHead")
    yield replace(head, alias_of="model.decoder.embed_tokens", stage="last", quantized=True)


def memory(c: ConfigView) -> tuple[AttentionSpec, ...]:
    """The decoder's own keys and values, and those of every position of the encoder, fixed in number."""
    heads = c.size("decoder_attention_heads")
    d = c.hidden // heads if heads else 0
    cross = StateSpec("cross", (Part("", heads, 1, "kv"),), 2 * d * c.size("max_source_positions"))
    layers = range(c.size("decoder_layers"))
    return (AttentionSpec("full", layers, heads=heads, kv_heads=heads, head_dim=d, v_head_dim=d, states=(cross,)),)


ARCHITECTURES = (Architecture("whisper", whisper, memory),)
