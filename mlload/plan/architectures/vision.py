"""Blocks that vision towers are made of. Towers are pre-norm encoders; names are given in full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.blocks import column, row
from mlload.plan.params import ParamSpec, Part


def side(c: ConfigView, name: str, default: int = 0) -> int:
    """A size in pixels that configs give as a number or as [height, width]."""
    value = c.get(name)
    if isinstance(value, list) and value and isinstance(value[0], int):
        return max(value[0], 0)
    return c.size(name, default)


def patch_conv(module: str, width: int, kernel: Sequence[int], *, bias: bool = False, **fields: Any) -> ParamSpec:
    """The convolution that turns patches into vectors: [width, channels, ...kernel], whole on every rank."""
    return ParamSpec(
        module=module,
        op="conv",
        shape=(width, *kernel),
        axes=("N", "K", *[""] * (len(kernel) - 1)),
        bias="bias" if bias else None,
        engine=module,
        kind=f"Conv{len(kernel) - 1}dLayer",
        component="vision",
        **fields,
    )


def fused_attention(
    root: str, layers: Sequence[int], width: int, heads: int, *, names: tuple[str, str], bias: bool = True
) -> Iterator[ParamSpec]:
    """Full attention with q, k and v in one tensor, one after another."""
    d = width // heads if heads else 0
    runs = tuple(Part(role, width, d or 1) for role in ("q", "k", "v"))
    yield column(f"{root}.{names[0]}", 3 * width, width, layers, parts=runs, bias=bias, kind="QKVParallelLinear")
    yield row(f"{root}.{names[1]}", width, width, layers, unit=d or 1, bias=bias)


def attention(
    root: str,
    layers: Sequence[int],
    width: int,
    heads: int,
    *,
    names: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "out_proj"),
    fused: str = "qkv_proj",
    bias: bool = True,
    out_bias: bool = True,
) -> Iterator[ParamSpec]:
    """Full attention with q, k and v apart, fused by the engine."""
    d = (width // heads if heads else 0) or 1
    for name, role in zip(names[:3], ("q", "k", "v"), strict=True):
        yield column(
            f"{root}.{name}",
            width,
            width,
            layers,
            role=role,
            unit=d,
            bias=bias,
            engine=f"{root}.{fused}",
            kind="QKVParallelLinear",
        )
    yield row(f"{root}.{names[3]}", width, width, layers, unit=d, bias=out_bias)


def mlp(
    root: str,
    layers: Sequence[int] | None,
    width: int,
    inner: int,
    *,
    out: int = 0,
    names: tuple[str, str] = ("fc1", "fc2"),
    bias: bool = True,
    **fields: Any,
) -> Iterator[ParamSpec]:
    """width -> inner -> out (default: back to width)."""
    yield column(f"{root}.{names[0]}", inner, width, layers, bias=bias, **fields)
    yield row(f"{root}.{names[1]}", out or width, inner, layers, bias=bias, **fields)
