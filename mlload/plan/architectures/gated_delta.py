"""Gated DeltaNet, the linear attention of Qwen3-Next and Qwen3.5."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.attention import AttentionSpec, StateSpec
from mlload.plan.architectures.blocks import LAYER, column, norm, param, row
from mlload.plan.params import ParamSpec, Part

ROOT = LAYER + ".linear_attn"
# vLLM layers/mamba/gdn/qwen_gdn_linear_attn.py, maybe_disable_tp: Marlin wants 64 outputs a rank.
WHOLE_UNDER = ("auto_awq", "auto_gptq", "inc")


def sizes(c: ConfigView) -> tuple[int, int, int, int]:
    """(key heads, value heads, channels of a key head, of a value head)."""
    return (
        c.size("linear_num_key_heads"),
        c.size("linear_num_value_heads"),
        c.size("linear_key_head_dim"),
        c.size("linear_value_head_dim"),
    )


def qkv(c: ConfigView) -> tuple[Part, ...]:
    """q, k and v, one after another; each is cut by its own heads."""
    k_heads, v_heads, k, v = sizes(c)
    return (Part("q", k_heads * k, k), Part("k", k_heads * k, k), Part("v", v_heads * v, v))


def gated_delta(
    c: ConfigView,
    layers: Sequence[int],
    *,
    interleaved: bool,
    root: str = ROOT,
    wiring: str = LAYER + ".input_layernorm",
) -> Iterator[ParamSpec]:
    """interleaved: q, k, v and z lie in one tensor, key head by key head, and so do b and a (Qwen3-Next); else
    in_proj_qkv, in_proj_z, in_proj_b and in_proj_a are stored apart (Qwen3.5)."""
    k_heads, v_heads, _, v = sizes(c)
    runs, z = qkv(c), Part("z", v_heads * v, v)
    wide: dict[str, Any] = {
        "engine": f"{root}.in_proj_qkvz",
        "kind": "MergedColumnParallelLinear",
        "component": "mixer",
        "wiring": wiring,
    }
    narrow = wide | {"engine": f"{root}.in_proj_ba"}
    if interleaved:
        parts = (*runs, z)
        total = sum(part.length for part in parts)
        yield column(f"{root}.in_proj_qkvz", total, c.hidden, layers, parts=parts, groups=k_heads or 1, **wide)
        parts = (Part("b", v_heads), Part("a", v_heads))
        yield column(f"{root}.in_proj_ba", 2 * v_heads, c.hidden, layers, parts=parts, groups=k_heads or 1, **narrow)
    else:
        total = sum(part.length for part in runs)
        yield column(f"{root}.in_proj_qkv", total, c.hidden, layers, parts=runs, **wide)
        yield column(f"{root}.in_proj_z", z.length, c.hidden, layers, parts=(z,), **wide)
        for role in ("b", "a"):
            module = f"{root}.in_proj_{role}"
            yield column(module, v_heads, c.hidden, layers, role=role, whole_under=WHOLE_UNDER, **narrow)
    yield ParamSpec(
        module=f"{root}.conv1d",
        op="conv",
        shape=(sum(part.length for part in runs), 1, c.size("linear_conv_kernel_dim")),
        axes=("N", "", "K"),
        style="column",
        parts=runs,
        layers=layers,
        engine=f"{root}.conv1d",
        kind="ColumnParallelLinear",
        component="mixer",
    )
    heads: dict[str, Any] = {
        "axes": ("N",),
        "style": "column",
        "parts": (Part("", v_heads),),
        "component": "mixer",
    }
    yield param(f"{root}.dt_bias", (v_heads,), layers, **heads)
    yield param(f"{root}.A_log", (v_heads,), layers, dtype="F32", **heads)
    yield norm(f"{root}.norm", v, layers, kind="RMSNormGated")
    yield row(f"{root}.out_proj", c.hidden, v_heads * v, layers, unit=v or 1, component="mixer", wiring=f"{root}.norm")


def state(c: ConfigView, layers: Sequence[int]) -> AttentionSpec:
    """What a sequence owns in each of these layers: the last inputs of the convolution and one matrix a value head."""
    _, v_heads, k, v = sizes(c)
    dtype = "F32" if c.get("mamba_ssm_dtype") == "float32" else "ssm"
    return AttentionSpec(
        "linear",
        layers,
        heads=v_heads,
        states=(
            StateSpec("conv", qkv(c), max(c.size("linear_conv_kernel_dim") - 1, 0)),
            StateSpec("ssm", (Part("", v_heads),), v * k, dtype),
        ),
    )
