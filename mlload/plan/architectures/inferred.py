"""A model type without a table: its modules guessed from names and shapes of the tensors that are there.

Numbers in names are layers, or experts where the word before them says so; what differs in shape
is a family of its own. The cut of a module follows from its name (`roles`). A guess can be wrong,
so everything made here is marked `inferred` and verdicts that hang on it are not certain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.config import ConfigView
from mlload.checkpoint.tensor import TensorRef
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.attention import AttentionSpec
from mlload.plan.architectures.memory import everywhere
from mlload.plan.architectures.packed import unpacked_shape
from mlload.plan.architectures.roles import EXPERT_WORDS, Guess, guess
from mlload.plan.params import ParamSpec, Part, Stage, Style

Op = Literal["linear", "embedding", "norm", "conv", "param", "experts"]

# Suffixes of a tensor that belong to the module before them; any other last word is a bare parameter's own name.
WEIGHTS = ("weight", "qweight", "weight_packed", "in_proj_weight")
COMPANIONS = (
    "bias",
    "qzeros",
    "scales",
    "g_idx",
    "weight_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "weight_zero_point",
    "weight_shape",
    "weight_global_scale",
    "weight_g_idx",
    "input_scale",
    "input_global_scale",
    "output_scale",
    "k_scale",
    "v_scale",
    "absmax",
    "quant_map",
    "SCB",
    "weight_format",
)


# Template, shape, bare, bias, quantized, numbered beyond the model's own layers.
_Key = tuple[str, tuple[int, ...], bool, bool, bool, bool]


class Family(NamedTuple):
    """Modules of one name and shape: `members` are (layer, expert) numbers, None where there is none."""

    module: str
    shape: tuple[int, ...]
    bare: bool
    bias: bool
    quantized: bool
    members: tuple[tuple[int | None, int | None], ...]


def infer(checkpoint: Checkpoint, config: ConfigView) -> Architecture:
    """The table that fits the tensors of `checkpoint`."""
    families = tuple(group(checkpoint.tensors, config))

    def build(c: ConfigView) -> Iterator[ParamSpec]:
        has_head = any(guess(family.module).job == "head" for family in families)
        for family in families:
            yield spec_of(family, c, has_head=has_head)

    def memory(c: ConfigView) -> tuple[AttentionSpec, ...]:
        return everywhere(c) if c.layers and c.heads and c.head_dim else ()

    return Architecture(config.model_type or "unknown", build, memory, inferred=True)


def group(tensors: Mapping[str, TensorRef], config: ConfigView) -> Iterator[Family]:
    """Tensors as families, in the order in which they come."""
    modules: dict[str, dict[str, TensorRef]] = {}
    for name, tensor in tensors.items():
        path, _, last = name.rpartition(".")
        if last in WEIGHTS or last in COMPANIONS:
            # bitsandbytes and torchao hang their parts under the weight: "q_proj.weight.absmax".
            module = path[: -len(".weight")] if path.endswith(".weight") else path
            modules.setdefault(module, {})[last] = tensor
        elif ".weight." in name:
            modules.setdefault(name.partition(".weight.")[0], {})[last] = tensor
        else:
            modules.setdefault(name, {})[""] = tensor
    found: dict[_Key, list[tuple[int | None, int | None]]] = defaultdict(list)
    for module, parts in modules.items():
        shape = unpacked_shape(parts, config)
        if shape is None:
            continue
        template, layer, expert = numbered(module)
        quantized = any(part in COMPANIONS and part != "bias" for part in parts) or "weight" not in parts
        beyond = bool(config.layers) and layer is not None and layer >= config.layers
        found[(template, shape, "" in parts, "bias" in parts, quantized, beyond)].append((layer, expert))
    for (template, shape, bare, bias, quantized, _), members in found.items():
        yield Family(template, shape, bare, bias, quantized and not bare, tuple(members))


def numbered(module: str) -> tuple[str, int | None, int | None]:
    """ "h.3.moe.experts.7.w1" -> ("h.{layer}.moe.experts.{expert}.w1", 3, 7); further numbers stay as they are."""
    words = module.split(".")
    layer = expert = None
    for i, word in enumerate(words):
        if not (word.isascii() and word.isdigit()) or len(word) > 6:
            continue
        if i and words[i - 1] in EXPERT_WORDS and expert is None:
            words[i], expert = "{expert}", int(word)
        elif layer is None:
            words[i], layer = "{layer}", int(word)
    return ".".join(words), layer, expert


def spec_of(family: Family, c: ConfigView, *, has_head: bool) -> ParamSpec:
    """The family with the cut that its name suggests."""
    what = guess(family.module)
    layers = sorted({layer for layer, _ in family.members if layer is not None}) or None
    experts = {expert for _, expert in family.members if expert is not None}
    draft = what.draft or bool(layers and c.layers and not what.tower and min(layers) >= c.layers)
    op, axes = _kind(family, what)
    style, parts = _cut(family, what, axes, c)
    engine, kind = _engine(family.module, what, op, style)
    return ParamSpec(
        module=family.module,
        op=op,
        shape=family.shape,
        axes=axes,
        style=style,
        parts=parts,
        bias="bias" if family.bias else None,
        weight="" if family.bare else "weight",
        layers=layers,
        experts=max(experts) + 1 if experts else None,
        engine=engine,
        kind=kind,
        component="draft" if draft else "norm" if op == "norm" and not what.tower else what.component,
        quantized=op in ("linear", "experts") and what.job != "router",
        mesh="tower" if what.tower else "text",
        stage=_stage(what, layers, op, c, has_head),
        draft=draft,
        optional=draft or what.job == "rotary",
    )


def _kind(family: Family, what: Guess) -> tuple[Op, tuple[str, ...]]:
    """What a tensor of that many dims is, and the meaning of its dims."""
    dims = len(family.shape)
    if dims == 2 and what.job in ("table", "head"):
        return "embedding", ("N", "K")
    if dims == 2 and not family.bare:
        return "linear", ("N", "K")
    if dims == 3 and what.component == "experts":
        return "experts", ("E", "N", "K")
    if dims == 1 and not family.bare:
        return "norm", ("N",)
    return ("conv" if dims > 2 and not family.bare else "param"), ("",) * dims


def _cut(family: Family, what: Guess, axes: tuple[str, ...], c: ConfigView) -> tuple[Style, tuple[Part, ...]]:
    """The usual cut of a module with that job. Towers stay whole: engines differ, and a guess would invent refusals."""
    if what.tower or not {"N", "K"} <= set(axes):
        return "replicated", ()
    n, k, d = family.shape[axes.index("N")], family.shape[axes.index("K")], c.head_dim or 1
    job = what.job
    if job in ("table", "head"):
        return "vocab", (Part("", n, 1, "vocab"),)
    if job == "q":
        return "column", (Part("q", n, _unit(n, d)),)
    if job in ("k", "v"):
        return "column", (Part(job, n, _unit(n, d), "kv"),)
    if job == "qkv":
        q, kv = c.heads * d, c.kv_heads * d
        fits = q and q + 2 * kv == n
        return "column", (Part("q", q, d), Part("k", kv, d, "kv"), Part("v", kv, d, "kv")) if fits else (Part("", n),)
    if job in ("gate", "up"):
        return "column", (Part(job, n),)
    if job == "gate_up":
        return "column", (Part("gate", n // 2), Part("up", n - n // 2))
    if job in ("out", "down"):
        return "row", (Part("", k, _unit(k, d) if job == "out" else 1),)
    return "replicated", ()


def _unit(length: int, head_dim: int) -> int:
    return head_dim if length % head_dim == 0 else 1


def _engine(module: str, what: Guess, op: Op, style: Style) -> tuple[str, str]:
    """Path and class of the engine's module: q, k and v fused, gate and up fused, routed experts together."""
    if what.job == "rotary":
        return "", ""
    if what.component == "experts" and op in ("linear", "experts"):
        apart = ".{expert}" in module
        return module.partition(".{expert}")[0] if apart else module.rpartition(".")[0], "RoutedExperts"
    if op == "linear":
        parent = module.rpartition(".")[0]
        if what.tower or style == "replicated":
            return module, "GateLinear" if what.job == "router" else "ReplicatedLinear"
        if what.job in ("q", "k", "v"):
            return f"{parent}.qkv_proj", "QKVParallelLinear"
        if what.job == "gate" or (what.job == "up" and module.endswith(("up_proj", "w3", "wi_1"))):
            return f"{parent}.gate_up_proj", "MergedColumnParallelLinear"
        return module, "RowParallelLinear" if style == "row" else "ColumnParallelLinear"
    if op == "embedding":
        return module, "ParallelLMHead" if what.job == "head" else "VocabParallelEmbedding"
    return module, "RMSNorm" if op == "norm" else ""


def _stage(what: Guess, layers: Sequence[int] | None, op: Op, c: ConfigView, has_head: bool) -> Stage:
    if what.tower:
        return "first"
    if layers is not None:
        return "layer"
    if what.job == "table":
        return "first" if has_head else "ends"
    return "last" if what.job == "head" or op == "norm" else "first"
