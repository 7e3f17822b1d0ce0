"""State-space mixers (Mamba 1 and 2) and short convolutions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mlload.plan.architectures.attention import AttentionSpec, StateSpec
from mlload.plan.architectures.blocks import LAYER, column, norm, param, row
from mlload.plan.params import Cut, ParamSpec, Part


@dataclass(frozen=True, slots=True)
class Mamba2:
    """Sizes of a Mamba2 mixer.

    heads, head_dim: heads x head_dim channels of x and z
    groups, state:   B and C have `groups` runs of `state` channels; a single group serves every head and is held by
                     every rank, several must divide by the ranks (vLLM layers/mamba/mamba_mixer2.py:316)
    width:           heads x head_dim where a config does not say otherwise
    norm:            False: the gated norm has no weight
    """

    hidden: int
    heads: int
    head_dim: int
    groups: int
    state: int
    kernel: int
    width: int = 0
    bias: bool = False
    out_bias: bool = False
    conv_bias: bool = True
    norm: bool = True

    @property
    def channels(self) -> int:
        return self.width or self.heads * self.head_dim

    def run(self, role: str) -> Part:
        """z, x, B, C or dt: a run of in_proj's outputs."""
        if role == "dt":
            return Part("dt", self.heads)
        if role in ("z", "x"):
            return Part(role, self.channels, self.head_dim or 1)
        cut: Cut = "replicate" if self.groups == 1 else "split"
        return Part(role, self.groups * self.state, self.state or 1, cut)

    @property
    def conv(self) -> tuple[Part, ...]:
        """The channels that the causal convolution mixes."""
        return tuple(self.run(role) for role in ("x", "B", "C"))


def mamba2(
    m: Mamba2,
    layers: Sequence[int],
    *,
    root: str = LAYER + ".mixer",
    wiring: str | None = LAYER + ".norm",
) -> Iterator[ParamSpec]:
    """One matrix yields z, x, B, C and dt, each cut by its own unit."""
    runs = tuple(m.run(role) for role in ("z", "x", "B", "C", "dt"))
    merged = "MergedColumnParallelLinear"
    yield column(
        f"{root}.in_proj",
        sum(part.length for part in runs),
        m.hidden,
        layers,
        parts=runs,
        bias=m.bias,
        kind=merged,
        component="mixer",
        wiring=wiring,
    )
    yield depthwise(f"{root}.conv1d", m.conv, m.kernel, layers, bias=m.conv_bias, kind=merged)
    heads: dict[str, Any] = {"axes": ("N",), "style": "column", "parts": (Part("", m.heads),), "component": "mixer"}
    yield param(f"{root}.A_log", (m.heads,), layers, dtype="F32", engine=f"{root}.A", **heads)
    yield param(f"{root}.D", (m.heads,), layers, **heads)
    yield param(f"{root}.dt_bias", (m.heads,), layers, **heads)
    if m.norm:
        yield norm(
            f"{root}.norm",
            m.channels,
            layers,
            kind="Mixer2RMSNormGated",
            style="column",
            parts=(Part("", m.channels, m.head_dim or 1),),
        )
    yield row(
        f"{root}.out_proj",
        m.hidden,
        m.channels,
        layers,
        unit=m.head_dim or 1,
        bias=m.out_bias,
        component="mixer",
        wiring=f"{root}.norm" if m.norm else None,
    )


def mamba2_state(m: Mamba2, layers: Sequence[int], dtype: str = "ssm") -> AttentionSpec:
    """The last inputs of the convolution, and [heads, head_dim, state]."""
    return AttentionSpec(
        "ssm",
        layers,
        heads=m.heads,
        states=(
            StateSpec("conv", m.conv, max(m.kernel - 1, 0)),
            StateSpec("ssm", (Part("", m.heads),), m.head_dim * m.state, dtype),
        ),
    )


@dataclass(frozen=True, slots=True)
class Mamba1:
    """Sizes of a Mamba mixer. rank: of the time step's projection; norms: dt, B and C are normalized, with weights
    (Jamba)."""

    hidden: int
    width: int
    state: int
    kernel: int
    rank: int
    bias: bool = False
    conv_bias: bool = True
    norms: bool = False


def mamba1(
    m: Mamba1, layers: Sequence[int], *, root: str = LAYER + ".mixer", wiring: str | None = LAYER + ".norm"
) -> Iterator[ParamSpec]:
    """Channels are independent, so all of it is cut by channels; vLLM never quantizes these layers."""
    common: dict[str, Any] = {"component": "mixer", "quantized": False}
    halves = (Part("x", m.width), Part("z", m.width))
    yield column(
        f"{root}.in_proj",
        2 * m.width,
        m.hidden,
        layers,
        parts=halves,
        bias=m.bias,
        kind="MergedColumnParallelLinear",
        wiring=wiring,
        **common,
    )
    yield depthwise(
        f"{root}.conv1d", (Part("", m.width),), m.kernel, layers, bias=m.conv_bias, kind="ColumnParallelLinear"
    )
    yield row(f"{root}.x_proj", m.rank + 2 * m.state, m.width, layers, **common)
    if m.norms:
        for name, size in (("dt_layernorm", m.rank), ("b_layernorm", m.state), ("c_layernorm", m.state)):
            yield norm(f"{root}.{name}", size, layers)
    yield column(f"{root}.dt_proj", m.width, m.rank, layers, bias=True, **common)
    channels: dict[str, Any] = {"style": "column", "parts": (Part("", m.width),), "component": "mixer"}
    shape, axes = (m.width, m.state), ("N", "K")
    yield param(f"{root}.A_log", shape, layers, axes=axes, dtype="F32", engine=f"{root}.A", **channels)
    yield param(f"{root}.D", (m.width,), layers, axes=("N",), **channels)
    yield row(f"{root}.out_proj", m.hidden, m.width, layers, bias=m.bias, **common)


def mamba1_state(m: Mamba1, layers: Sequence[int]) -> AttentionSpec:
    channels = (Part("", m.width),)
    return AttentionSpec(
        "ssm",
        layers,
        states=(StateSpec("conv", channels, max(m.kernel - 1, 0)), StateSpec("ssm", channels, m.state, "ssm")),
    )


def depthwise(
    module: str, parts: tuple[Part, ...], kernel: int, layers: Sequence[int], *, bias: bool, kind: str, engine: str = ""
) -> ParamSpec:
    """A causal convolution with one filter a channel: [channels, 1, kernel]."""
    return ParamSpec(
        module=module,
        op="conv",
        shape=(sum(part.length for part in parts), 1, kernel),
        axes=("N", "", "K"),
        style="column",
        parts=parts,
        bias="bias" if bias else None,
        layers=layers,
        engine=engine or module,
        kind=kind,
        component="mixer",
    )


def short_conv(
    root: str, width: int, kernel: int, layers: Sequence[int], *, bias: bool, wiring: str | None
) -> Iterator[ParamSpec]:
    """B, C and x from one matrix; x gated by B is convolved, gated by C and projected back (LFM2)."""
    held = root.removesuffix("conv") + "short_conv"
    runs = tuple(Part(role, width) for role in ("B", "C", "x"))
    yield column(
        f"{root}.in_proj",
        3 * width,
        width,
        layers,
        parts=runs,
        bias=bias,
        engine=f"{held}.in_proj",
        kind="MergedColumnParallelLinear",
        component="mixer",
        wiring=wiring,
    )
    yield depthwise(
        f"{root}.conv",
        (Part("", width),),
        kernel,
        layers,
        bias=bias,
        kind="ColumnParallelLinear",
        engine=f"{held}.conv",
    )
    yield row(f"{root}.out_proj", width, width, layers, bias=bias, engine=f"{held}.out_proj", component="mixer")


def short_conv_state(width: int, kernel: int, layers: Sequence[int]) -> AttentionSpec:
    return AttentionSpec("ssm", layers, states=(StateSpec("conv", (Part("", width),), max(kernel - 1, 0)),))
