"""Building blocks that architecture tables are made of: linears, attention, MLPs, tables, norms.

Modules are named as on disk; `{layer}` and `{expert}` stay in the names. Every block yields its
modules in the order in which data flows through them. Mixtures of experts are in `moe_blocks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from mlload.checkpoint.config import ConfigView
from mlload.plan.params import Cut, ParamSpec, Part

LAYER = "model.layers.{layer}"
Layers = Sequence[int] | None


def sibling(module: str, name: str) -> str:
    """The module called `name` beside `module`."""
    return module.rpartition(".")[0] + "." + name if "." in module else name


def norm(
    module: str, size: int, layers: Layers = None, *, bias: bool = False, kind: str = "", **fields: Any
) -> ParamSpec:
    """A norm with `size` weights. A biased one is a LayerNorm."""
    spec = ParamSpec(
        module=module,
        op="norm",
        shape=(size,),
        axes=("N",),
        layers=layers,
        bias="bias" if bias else None,
        engine=module,
        kind=kind or ("LayerNorm" if bias else "RMSNorm"),
        component="norm",
    )
    return replace(spec, **fields) if fields else spec


def linear(module: str, n: int, k: int, layers: Layers = None, *, bias: bool = False, **fields: Any) -> ParamSpec:
    """A linear [n, k] that no cut touches (ReplicatedLinear), unless `fields` say otherwise."""
    fields.setdefault("engine", module)
    fields.setdefault("kind", "ReplicatedLinear")
    fields.setdefault("quantized", True)
    fields.setdefault("axes", ("N", "K"))
    shape = (n, k) if fields["axes"] == ("N", "K") else (k, n)
    return ParamSpec(module=module, op="linear", shape=shape, layers=layers, bias="bias" if bias else None, **fields)


def column(
    module: str,
    n: int,
    k: int,
    layers: Layers = None,
    *,
    parts: tuple[Part, ...] = (),
    role: str = "",
    unit: int = 1,
    cut: Cut = "split",
    kind: str = "ColumnParallelLinear",
    **fields: Any,
) -> ParamSpec:
    """A linear whose outputs are divided."""
    return linear(module, n, k, layers, style="column", parts=parts or (Part(role, n, unit, cut),), kind=kind, **fields)


def row(module: str, n: int, k: int, layers: Layers = None, *, unit: int = 1, **fields: Any) -> ParamSpec:
    """A linear whose inputs are divided."""
    fields.setdefault("kind", "RowParallelLinear")
    return linear(module, n, k, layers, style="row", parts=(Part("", k, unit),), **fields)


def param(module: str, shape: tuple[int, ...], layers: Layers = None, **fields: Any) -> ParamSpec:
    """A bare parameter: the tensor's name is `module` itself. Give `axes` where a cut touches it."""
    fields.setdefault("axes", ("",) * len(shape))
    fields.setdefault("engine", module)
    return ParamSpec(module=module, op="param", shape=shape, layers=layers, weight="", **fields)


def table(module: str, rows: int, width: int, *, cut: bool = True, **fields: Any) -> ParamSpec:
    """An embedding table; `cut` false for plain nn.Embedding, which every rank holds whole."""
    fields.setdefault("kind", "VocabParallelEmbedding" if cut else "Embedding")
    fields.setdefault("engine", module)
    fields.setdefault("component", "embedding")
    fields.setdefault("stage", "first")
    return ParamSpec(
        module=module,
        op="embedding",
        shape=(rows, width),
        axes=("N", "K"),
        style="vocab" if cut else "replicated",
        parts=(Part("", rows, 1, "vocab"),) if cut else (),
        **fields,
    )


def embedding(c: ConfigView, module: str = "model.embed_tokens", *, width: int = 0, **fields: Any) -> ParamSpec:
    """The input table; on both ends of a pipeline where the head is tied to it."""
    return table(module, c.vocab, width or c.hidden, stage="ends" if c.tied else "first", **fields)


def head(
    c: ConfigView, module: str = "lm_head", *, tied_to: str = "model.embed_tokens", width: int = 0, **fields: Any
) -> ParamSpec:
    """The output head; a tied one has `alias_of` and no tensor (or bytes) of its own."""
    fields.setdefault("alias_of", tied_to if c.tied else None)
    fields.setdefault("kind", "ParallelLMHead")
    return table(module, c.vocab, width or c.hidden, component="head", stage="last", quantized=True, **fields)


def biased_head(
    c: ConfigView, module: str = "lm_head", *, tied_to: str = "model.embed_tokens", engine_only: bool = False
) -> Iterator[ParamSpec]:
    """A head and its bias, which has bytes of its own even where the head is tied. engine_only: of the bias."""
    yield head(c, module, tied_to=tied_to)
    yield param(
        f"{module}.bias",
        (c.vocab,),
        axes=("N",),
        style="vocab",
        parts=(Part("", c.vocab, 1, "vocab"),),
        kind="ParallelLMHead",
        component="head",
        stage="last",
        engine_only=engine_only,
    )


def gqa(
    c: ConfigView,
    layers: Layers,
    *,
    root: str = LAYER + ".self_attn",
    qkv_bias: bool = False,
    out_bias: bool = False,
    names: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj"),
    fused: str = "qkv_proj",
    out: str = "o_proj",
    qk_norm: bool = False,
    heads: int = 0,
    kv_heads: int = 0,
    head_dim: int = 0,
    wiring: str | None = LAYER + ".input_layernorm",
    **fields: Any,
) -> Iterator[ParamSpec]:
    """Grouped-query attention with q, k and v stored apart, fused by the engine."""
    d, hidden = head_dim or c.head_dim, c.hidden
    heads, kv_heads = heads or c.heads, kv_heads or c.kv_heads
    cuts: tuple[tuple[str, int, Cut], ...] = (("q", heads, "split"), ("k", kv_heads, "kv"), ("v", kv_heads, "kv"))
    for name, (role, count, cut) in zip(names, cuts, strict=True):
        yield column(
            f"{root}.{name}",
            count * d,
            hidden,
            layers,
            role=role,
            unit=d,
            cut=cut,
            bias=qkv_bias,
            engine=f"{root}.{fused}",
            kind="QKVParallelLinear",
            component="attention",
            wiring=wiring,
            **fields,
        )
    if qk_norm:
        yield norm(f"{root}.q_norm", d, layers, **fields)
        yield norm(f"{root}.k_norm", d, layers, **fields)
    yield row(
        f"{root}.{out}",
        hidden,
        heads * d,
        layers,
        unit=d,
        bias=out_bias,
        component="attention",
        wiring=f"{root}.{names[2]}",
        **fields,
    )


def fused_qkv(
    c: ConfigView,
    layers: Layers,
    *,
    root: str = LAYER + ".self_attn",
    name: str = "qkv_proj",
    out: str = "o_proj",
    qkv_bias: bool = False,
    out_bias: bool = False,
    groups: int = 1,
    heads: int = 0,
    kv_heads: int = 0,
    head_dim: int = 0,
    axes: tuple[str, str] = ("N", "K"),
    wiring: str | None = LAYER + ".input_layernorm",
    **fields: Any,
) -> Iterator[ParamSpec]:
    """Attention with q, k and v stored in one tensor: one run each, or `groups` runs of each in turn."""
    d, hidden = head_dim or c.head_dim, c.hidden
    heads, kv_heads = heads or c.heads, kv_heads or c.kv_heads
    yield column(
        f"{root}.{name}",
        (heads + 2 * kv_heads) * d,
        hidden,
        layers,
        parts=(Part("q", heads * d, d), Part("k", kv_heads * d, d, "kv"), Part("v", kv_heads * d, d, "kv")),
        groups=groups,
        bias=qkv_bias,
        kind="QKVParallelLinear",
        component="attention",
        axes=axes,
        wiring=wiring,
        **fields,
    )
    yield row(
        f"{root}.{out}",
        hidden,
        heads * d,
        layers,
        unit=d,
        bias=out_bias,
        component="attention",
        axes=axes,
        wiring=f"{root}.{name}",
        **fields,
    )


def gated_mlp(
    c: ConfigView,
    layers: Layers,
    *,
    root: str = LAYER + ".mlp",
    width: int = 0,
    bias: bool = False,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    fused: str = "gate_up_proj",
    component: str = "mlp",
    wiring: str | None = LAYER + ".post_attention_layernorm",
    hidden: int = 0,
    **fields: Any,
) -> Iterator[ParamSpec]:
    """down(act(gate(x)) * up(x)), gate and up stored apart and fused by the engine."""
    width, hidden = width or c.intermediate, hidden or c.hidden
    for name, role in zip(names[:2], ("gate", "up"), strict=True):
        yield column(
            f"{root}.{name}",
            width,
            hidden,
            layers,
            role=role,
            bias=bias,
            engine=f"{root}.{fused}",
            kind="MergedColumnParallelLinear",
            component=component,
            wiring=wiring,
            **fields,
        )
    yield row(
        f"{root}.{names[2]}",
        hidden,
        width,
        layers,
        bias=bias,
        component=component,
        wiring=f"{root}.{names[1]}",
        **fields,
    )


def fused_gated_mlp(
    c: ConfigView,
    layers: Layers,
    *,
    root: str = LAYER + ".mlp",
    width: int = 0,
    names: tuple[str, str] = ("gate_up_proj", "down_proj"),
    bias: bool = False,
    component: str = "mlp",
    wiring: str | None = LAYER + ".post_attention_layernorm",
    **fields: Any,
) -> Iterator[ParamSpec]:
    """A gated MLP with gate and up stored in one tensor, one after the other."""
    width = width or c.intermediate
    yield column(
        f"{root}.{names[0]}",
        2 * width,
        c.hidden,
        layers,
        parts=(Part("gate", width), Part("up", width)),
        bias=bias,
        kind="MergedColumnParallelLinear",
        component=component,
        wiring=wiring,
        **fields,
    )
    yield row(
        f"{root}.{names[1]}",
        c.hidden,
        width,
        layers,
        bias=bias,
        component=component,
        wiring=f"{root}.{names[0]}",
        **fields,
    )


def plain_mlp(
    c: ConfigView,
    layers: Layers,
    *,
    root: str = LAYER + ".mlp",
    width: int = 0,
    names: tuple[str, str] = ("fc1", "fc2"),
    bias: bool = True,
    axes: tuple[str, str] = ("N", "K"),
    component: str = "mlp",
    wiring: str | None = LAYER + ".post_attention_layernorm",
    **fields: Any,
) -> Iterator[ParamSpec]:
    """down(act(up(x)))."""
    width = width or c.intermediate
    common: dict[str, Any] = {"bias": bias, "axes": axes, "component": component, **fields}
    yield column(f"{root}.{names[0]}", width, c.hidden, layers, role="up", wiring=wiring, **common)
    yield row(f"{root}.{names[1]}", c.hidden, width, layers, wiring=f"{root}.{names[0]}", **common)
