"""Nemotron-H: one block per layer, a Mamba2 mixer, attention, an MLP or experts, as a pattern says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.attention import AttentionSpec
from mlload.plan.architectures.blocks import column, embedding, gqa, head, linear, norm, param, plain_mlp, row
from mlload.plan.architectures.composite import AS_IS, moved, on_every_stage
from mlload.plan.architectures.draft import as_draft
from mlload.plan.architectures.mamba_blocks import Mamba2, mamba2, mamba2_state
from mlload.plan.architectures.memory import kv
from mlload.plan.architectures.moe_blocks import router
from mlload.plan.params import ParamSpec

LAYER = "backbone.layers.{layer}"
MIXER = LAYER + ".mixer"
ENGINE = (("backbone.embeddings", "model.embed_tokens"), ("backbone.", "model."))
LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
# A pattern is somebody else's string: as long as anybody's model is deep.
MOST = 4096
NAMES = {"linear_attention": "mamba", "full_attention": "attention"}


def kinds(c: ConfigView, letters: str = "hybrid_override_pattern", names: str = "layers_block_type") -> list[str]:
    """What each layer is: "mamba", "attention", "mlp" or "moe"."""
    pattern = c.get(letters)
    if isinstance(pattern, str) and pattern:
        return [LETTERS.get(letter, "") for letter in pattern[:MOST]]
    return [NAMES.get(str(name), str(name)) for name in (c.items(names) or c.items("layer_types"))[:MOST]]


def of_kind(c: ConfigView, kind: str) -> tuple[int, ...]:
    return tuple(i for i, name in enumerate(kinds(c)) if name == kind)


def head_dim(c: ConfigView) -> int:
    return c.size("head_dim") or c.size("attention_head_dim") or (c.hidden // c.heads if c.heads else 0)


def mixer(c: ConfigView) -> Mamba2:
    return Mamba2(
        hidden=c.hidden,
        heads=c.size("mamba_num_heads"),
        head_dim=c.size("mamba_head_dim"),
        groups=c.size("n_groups", 1),
        state=c.size("ssm_state_size"),
        kernel=c.size("conv_kernel"),
        bias=c.flag("use_bias"),
        out_bias=c.flag("use_bias"),
        conv_bias=c.flag("use_conv_bias", True),
    )


def block(c: ConfigView, kind: str, layers: Sequence[int]) -> Iterator[ParamSpec]:
    """The mixer of some layers of one kind."""
    wiring = f"{LAYER}.norm"
    if kind == "mamba":
        yield from mamba2(mixer(c), layers, root=MIXER, wiring=wiring)
    elif kind == "attention":
        # Its config has an `attention_bias`, of which neither transformers nor vLLM takes notice.
        yield from gqa(c, layers, root=MIXER, head_dim=head_dim(c), wiring=wiring)
    elif kind == "mlp":
        yield from plain_mlp(
            c, layers, root=MIXER, names=("up_proj", "down_proj"), bias=c.flag("mlp_bias"), wiring=wiring
        )
    elif kind == "moe":
        yield from moe(c, layers)


def moe(c: ConfigView, layers: Sequence[int]) -> Iterator[ParamSpec]:
    """Experts without a gate projection, which may work in a narrower space than the model's."""
    wiring, bias = f"{LAYER}.norm", c.flag("mlp_bias")
    inner = c.size("moe_latent_size") or c.hidden
    yield router(c, layers, f"{MIXER}.gate")
    yield param(f"{MIXER}.gate.e_score_correction_bias", (c.experts,), layers, component="router", dtype="F32")
    base, width = f"{MIXER}.experts.{{expert}}", c.size("moe_intermediate_size")
    common: dict[str, Any] = {
        "experts": c.experts,
        "engine": f"{MIXER}.experts.routed_experts",
        "kind": "RoutedExperts",
        "component": "experts",
    }
    if inner != c.hidden:
        yield linear(f"{MIXER}.fc1_latent_proj", inner, c.hidden, layers, bias=bias, component="experts")
    yield column(f"{base}.up_proj", width, inner, layers, role="up", wiring=wiring, **common)
    yield row(f"{base}.down_proj", inner, width, layers, wiring=f"{base}.up_proj", **common)
    if inner != c.hidden:
        yield linear(f"{MIXER}.fc2_latent_proj", c.hidden, inner, layers, bias=bias, component="experts")
    shared = c.size("moe_shared_expert_intermediate_size") * c.size("n_shared_experts")
    if shared:
        yield from plain_mlp(
            c,
            layers,
            root=f"{MIXER}.shared_experts",
            width=shared,
            names=("up_proj", "down_proj"),
            bias=bias,
            component="shared_expert",
            wiring=wiring,
        )


def draft(c: ConfigView) -> Iterator[ParamSpec]:
    """Multi-token prediction under "mtp.": the first block of a step joins embedding and hidden state."""
    steps = c.size("num_nextn_predict_layers")
    pattern = kinds(c, "mtp_hybrid_override_pattern", "mtp_layers_block_type") if steps else []
    if not pattern:
        return
    layers = range(steps * len(pattern))
    first, last = layers[:: len(pattern)], layers[len(pattern) - 1 :: len(pattern)]
    found = [norm(f"{LAYER}.norm", c.hidden, layers)]
    for kind in dict.fromkeys(pattern):
        found += block(c, kind, tuple(i for i in layers if pattern[i % len(pattern)] == kind))
    found += [
        norm(f"{LAYER}.enorm", c.hidden, first),
        norm(f"{LAYER}.hnorm", c.hidden, first),
        linear(f"{LAYER}.eh_proj", c.hidden, 2 * c.hidden, first, quantized=False),
        norm(f"{LAYER}.final_layernorm", c.hidden, last),
    ]
    mtp = (("backbone.", "mtp."),)
    yield from as_draft(moved(found, mtp, mtp))


def build(c: ConfigView) -> Iterator[ParamSpec]:
    pattern = kinds(c)
    table = embedding(c, "backbone.embeddings")
    found = [table, norm(f"{LAYER}.norm", c.hidden, range(len(pattern)))]
    for kind in dict.fromkeys(pattern):
        found += block(c, kind, of_kind(c, kind))
    found += [norm("backbone.norm_f", c.hidden), head(c, alias_of=None)]
    # Neither transformers nor vLLM ties the head.
    # vLLM builds the tables and the last norm on every stage (models/nemotron_h.py:584, :613, :842).
    yield from moved(on_every_stage(found, "embedding", "norm", "head"), AS_IS, ENGINE)
    yield from draft(c)


def memory(c: ConfigView) -> tuple[AttentionSpec, ...]:
    # vLLM keeps the recurrent state in float32 unless the config says otherwise (models/config.py:826).
    dtype = "F32" if c.get("mamba_ssm_cache_dtype", "float32") == "float32" else "ssm"
    idle = tuple(sorted(of_kind(c, "mlp") + of_kind(c, "moe")))
    window = c.size("sliding_window") or None
    full = kv(c, of_kind(c, "attention"), "sliding" if window else "full", window=window, head_dim=head_dim(c))
    groups = (full, mamba2_state(mixer(c), of_kind(c, "mamba"), dtype), AttentionSpec("none", idle))
    return tuple(group for group in groups if group.layers)


ARCHITECTURES = (Architecture("nemotron_h", build, memory, alternates=(("model.", "backbone."),)),)
