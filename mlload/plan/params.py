"""What an engine's model class expects of a checkpoint, and how each weight is cut.

A `ParamSpec` is one module of the checkpoint (a linear, a norm, a table, a bare parameter) as a
*family*: the same module in many layers, and for experts in many experts. 90,000 tensors times
16 ranks is 1.4 million objects; families keep that symbolic, sizes come from arithmetic, and
names are expanded only when somebody asks.

Letters: N = out_features, K = in_features, E = experts, of the whole model (not per rank).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

Style = Literal["column", "row", "replicated", "vocab"]
Stage = Literal["layer", "first", "last", "ends", "all"]

Cut = Literal["split", "kv", "replicate", "vocab"]


class Part(NamedTuple):
    """A run of the cut axis that is divided by itself (q, k and v of a fused qkv; z, x, B, C, dt).

    role:   "q", "k", "v", "gate", "up", ... ; "" when the module is a single part
    length: elements along the cut axis, over all ranks
    unit:   the smallest run that may not be divided (head_dim for attention); length // unit is
            the count that must divide by tp
    cut:    "split"      each rank holds length / tp
            "kv"         like split; when tp exceeds the count of units, a unit is shared by
                         tp / count ranks and each of them holds one (KV heads)
            "replicate"  whole on every rank
            "vocab"      padded to the engine's multiple first, then split
    """

    role: str
    length: int
    unit: int = 1
    cut: Cut = "split"


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """One module of the checkpoint, for all its layers and experts at once.

    module:     path on disk, with "{layer}" and "{expert}" where they vary:
                "model.layers.{layer}.self_attn.q_proj". The tensor is `module + "." + weight`
                (or `module` alone when weight is "").
    op:         "linear", "embedding", "norm", "conv", "param" (a bare parameter), "experts"
                (all experts stacked in one tensor)
    shape:      of the unquantized weight, as on disk
    axes:       one letter per dim of `shape`: "N" out, "K" in, "E" experts, "" none of them.
                ("N", "K") a linear; ("K", "N") GPT-2's Conv1D; ("E", "K", "N") stacked, transposed
    style:      "column" cuts N, "row" cuts K, "vocab" cuts N after padding, "replicated" cuts nothing
    parts:      the runs of the cut axis; empty for "replicated"
    groups:     1: the parts lie one after another. n > 1: the axis is n groups, each holding an
                equal share of every part in turn (GPT-NeoX: one group a head; gpt-oss's gate and
                up: one group a row pair)
    bias:       suffix of a bias of length N ([E, N] for stacked experts), or None. Column-parallel biases are cut
                with N, row-parallel ones are whole on every rank
    weight:     suffix of the weight; suffixes follow a dot unless they begin with "_" (gpt-oss: "_bias")
    layers:     the layer numbers, or None for a module outside the layers
    experts:    the count, for modules stored once per expert ("{expert}" in `module`), else None;
                for stacked experts the count is shape[axes.index("E")]
    engine:     path of the engine's module that holds it, same placeholders; fused parts share it
                ("model.layers.{layer}.self_attn.qkv_proj"); "" where the engine does not keep it (a stored
                rotary table), which then counts on disk only
    kind:       the engine's class for that module ("QKVParallelLinear", "RMSNorm", "RoutedExperts", ...)
    component:  where its bytes are shown: "embedding", "attention", "mixer", "mlp", "experts", "shared_expert",
                "router", "norm", "head", "vision", "audio", "projector", "draft", "other"
    quantized:  the engine asks its quantization config for a method for this module
    alias_of:   module whose tensor this is when tied (not saved then), else None
    optional:   may be absent or present without harm
    mesh:       "text", or "tower" for vision and audio modules, which an engine may replicate
    stage:      where it lives under pipeline parallelism: with its layer, on the first or last
                stage, on both ends (tied tables), or on all
    draft:      belongs to a draft (MTP) layer, which engines build only for speculative decoding
    dtype:      a dtype that the model class forces whatever the checkpoint's ("F32"), or None
    wiring:     module whose output is this linear's input (AWQ folds scales there), or None
    engine_only: the engine allocates it, checkpoints do not hold it (a bias that only the fused module has); with
                `alias_of` it is a copy of that module's tensor, with bytes of its own (Gemma's v, where k serves twice)
    whole_under: the engine's quantization methods under which it holds the module whole on every rank, though it cuts
                it otherwise (their kernels want wide outputs)
    buffer:     the engine loads it, but as a buffer, which is no parameter: its bytes are in disk_bytes only
    transforms: what a loader does to a rank's rows before they are the module's, in order: "unpair_rope:64" undoes
                GGUF's order of q and k (each head of 64 rows holds its two halves in turn)
    """

    module: str
    op: Literal["linear", "embedding", "norm", "conv", "param", "experts"]
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    style: Style = "replicated"
    parts: tuple[Part, ...] = ()
    groups: int = 1
    bias: str | None = None
    weight: str = "weight"
    layers: Sequence[int] | None = None
    experts: int | None = None
    engine: str = ""
    kind: str = ""
    component: str = "other"
    quantized: bool = False
    alias_of: str | None = None
    optional: bool = False
    mesh: Literal["text", "tower"] = "text"
    stage: Stage = "layer"
    draft: bool = False
    dtype: str | None = None
    wiring: str | None = None
    engine_only: bool = False
    transforms: tuple[str, ...] = ()
    whole_under: tuple[str, ...] = ()
    buffer: bool = False

    def __post_init__(self) -> None:
        # A damaged config makes heads of no width. Everybody divides by a unit, so none is smaller than one element.
        if any(part.unit < 1 for part in self.parts):
            parts = tuple(part._replace(unit=max(1, part.unit)) for part in self.parts)
            object.__setattr__(self, "parts", parts)

    @property
    def n(self) -> int:
        """N, out_features over all ranks (of one expert)."""
        return self.shape[self.axes.index("N")] if "N" in self.axes else 1

    @property
    def k(self) -> int:
        """K, in_features over all ranks; 1 for a vector."""
        return self.shape[self.axes.index("K")] if "K" in self.axes else 1

    @property
    def count(self) -> int:
        """How many modules the family has (layers x experts stored apart)."""
        return (1 if self.layers is None else len(self.layers)) * (self.experts or 1)

    def tensor(self, module: str, suffix: str | None = None) -> str:
        """Name of one of the tensors of `module`: of its weight, or of the one called `suffix`."""
        suffix = self.weight if suffix is None else suffix
        return module + suffix if not suffix or suffix.startswith("_") else f"{module}.{suffix}"

    @property
    def bias_shape(self) -> tuple[int, ...]:
        """Shape of the bias, where there is one: [N], or [E, N] for stacked experts."""
        return (*(d for d, axis in zip(self.shape, self.axes, strict=True) if axis == "E"), self.n)

    def with_prefix(self, prefix: str) -> ParamSpec:
        """The same family under another root, on disk and in the engine."""
        return replace(self, module=prefix + self.module, engine=prefix + self.engine if self.engine else "")

    def modules(self) -> Iterator[str]:
        """Every disk path of the family, layers outermost."""
        template = self.module
        for layer in (None,) if self.layers is None else self.layers:
            path = template if layer is None else template.replace("{layer}", str(layer))
            if self.experts is None:
                yield path
            else:
                head, tail = path.split("{expert}")
                for expert in range(self.experts):
                    yield f"{head}{expert}{tail}"
