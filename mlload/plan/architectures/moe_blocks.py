"""Mixtures of experts: routers, experts stored one by one or stacked, shared experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.blocks import LAYER, Layers, column, linear, row
from mlload.plan.params import ParamSpec, Part


def router(c: ConfigView, layers: Layers, module: str = LAYER + ".mlp.gate", **fields: Any) -> ParamSpec:
    """One logit an expert; whole on every rank, and never quantized by the engine."""
    fields.setdefault("kind", "GateLinear")
    fields.setdefault("quantized", False)
    fields.setdefault("component", "router")
    return linear(module, fields.pop("count", c.experts), c.hidden, layers, **fields)


def experts(
    c: ConfigView,
    layers: Layers,
    *,
    root: str = LAYER + ".mlp.experts",
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    width: int = 0,
    count: int = 0,
    engine: str = "",
    kind: str = "RoutedExperts",
    wiring: str | None = LAYER + ".post_attention_layernorm",
    hidden: int = 0,
    **fields: Any,
) -> Iterator[ParamSpec]:
    """Gated experts stored one by one; the engine stacks gate and up as w13, down as w2."""
    width, hidden = width or c.size("moe_intermediate_size"), hidden or c.hidden
    common: dict[str, Any] = {
        "experts": count or c.experts,
        "engine": engine or f"{root}.routed_experts",
        "kind": kind,
        "component": "experts",
        **fields,
    }
    base = root + ".{expert}"
    gate, up, down = names
    yield column(f"{base}.{gate}", width, hidden, layers, role="gate", wiring=wiring, **common)
    yield column(f"{base}.{up}", width, hidden, layers, role="up", wiring=wiring, **common)
    yield row(f"{base}.{down}", hidden, width, layers, wiring=f"{base}.{up}", **common)


def stacked_experts(
    c: ConfigView,
    layers: Layers,
    *,
    root: str = LAYER + ".mlp.experts",
    names: tuple[str, str] = ("gate_up_proj", "down_proj"),
    width: int = 0,
    count: int = 0,
    axes: tuple[str, str, str] = ("E", "N", "K"),
    groups: int = 1,
    weight: str = "",
    engine: str = "",
    kind: str = "RoutedExperts",
    bias: str | None = None,
    wiring: str | None = LAYER + ".post_attention_layernorm",
    **fields: Any,
) -> Iterator[ParamSpec]:
    """All gated experts in two tensors: [E, 2 x width, hidden] and [E, hidden, width], in the order of `axes`.

    bias: suffix of [E, N] biases (gpt-oss: "_bias"); groups: `width` when gate and up alternate row by row
    """
    width, count = width or c.size("moe_intermediate_size"), count or c.experts
    parts = ((Part("gate", width), Part("up", width)), (Part("", width),))
    sizes = ((2 * width, c.hidden), (c.hidden, width))
    inputs = (wiring, f"{root}.{names[0]}")
    for name, (n, k), runs, style, source in zip(names, sizes, parts, ("column", "row"), inputs, strict=True):
        yield ParamSpec(
            module=f"{root}.{name}",
            op="experts",
            shape=tuple({"E": count, "N": n, "K": k}[axis] for axis in axes),
            axes=axes,
            style="column" if style == "column" else "row",
            parts=runs,
            groups=groups if style == "column" else 1,
            bias=bias,
            weight=weight,
            layers=layers,
            engine=engine or f"{root}.routed_experts",
            kind=kind,
            component="experts",
            quantized=True,
            wiring=source,
            **fields,
        )


def moe_layers(c: ConfigView, is_moe: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(dense layers, layers with experts), by a predicate over the layer number."""
    dense = tuple(i for i in range(c.layers) if not is_moe(i))
    sparse = tuple(i for i in range(c.layers) if is_moe(i))
    return dense, sparse
