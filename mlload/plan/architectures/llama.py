"""Llama and those that differ from it by a bias or a norm."""

from __future__ import annotations

from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.decoder import decoder
from mlload.plan.architectures.memory import by_layer_types, everywhere

llama = decoder(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias", rotary_tables=True)

ARCHITECTURES = (
    Architecture("llama", llama, everywhere),
    Architecture("granite", llama, everywhere),
    Architecture("smollm3", llama, by_layer_types),
    Architecture(
        "internlm3",
        decoder(
            qkv_bias=("attention_bias", "qkv_bias"),
            out_bias=("attention_bias", "qkv_bias"),
            mlp_bias=("mlp_bias", "bias"),
        ),
        everywhere,
    ),
    Architecture(
        "seed_oss",
        decoder(qkv_bias="attention_bias", out_bias="attention_out_bias", mlp_bias="mlp_bias"),
        everywhere,
    ),
    Architecture(
        "arcee",
        decoder(
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            mlp="plain",
            mlp_names=("up_proj", "down_proj"),
            mlp_bias="mlp_bias",
        ),
        everywhere,
    ),
    Architecture("ernie4_5", decoder(qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias"), everywhere),
    Architecture(
        "exaone4",
        decoder(
            qk_norm=True,
            before_attention=None,
            after_attention=("post_attention_layernorm",),
            before_mlp=None,
            after_mlp=("post_feedforward_layernorm",),
        ),
        by_layer_types,
    ),
    Architecture("stablelm", decoder(qkv_bias="use_qkv_bias", norm_bias=True), everywhere),
    Architecture(
        "nemotron",
        decoder(
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            norm_bias=True,
            mlp="plain",
            mlp_names=("up_proj", "down_proj"),
            mlp_bias="mlp_bias",
        ),
        everywhere,
    ),
    Architecture(
        "starcoder2",
        decoder(
            qkv_bias="use_bias",
            out_bias="use_bias",
            norm_bias=True,
            mlp="plain",
            mlp_names=("c_fc", "c_proj"),
            mlp_bias="use_bias",
        ),
        by_layer_types,
    ),
)
