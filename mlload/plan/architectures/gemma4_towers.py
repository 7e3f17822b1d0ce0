"""Gemma 4's encoders of pictures and sound. vLLM runs transformers' own modules, whole on every rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.blocks import linear, norm, param
from mlload.plan.architectures.vision import side
from mlload.plan.params import ParamSpec


def clippable(
    v: ConfigView, module: str, n: int, k: int, layers: Sequence[int], *, default: bool = False
) -> Iterator[ParamSpec]:
    """A linear with bounds, as buffers, for what goes in and comes out."""
    yield linear(f"{module}.linear", n, k, layers)
    if v.flag("use_clipped_linears", default):
        for bound in ("input_min", "input_max", "output_min", "output_max"):
            yield param(f"{module}.{bound}", (), layers, buffer=True)


def projector(root: str, width: int, hidden: int) -> ParamSpec:
    """Into the language model's width; the norm before it has no weight."""
    return linear(f"{root}.embedding_projection", hidden, width, component="projector")


def vision(v: ConfigView, hidden: int) -> Iterator[ParamSpec]:
    """v: the tower's own config. hidden: width of the language model."""
    root, width, layers = "model.vision_tower", v.hidden, range(v.layers)
    layer, d = f"{root}.encoder.layers.{{layer}}", v.head_dim
    patch, positions = side(v, "patch_size"), v.size("position_embedding_size")
    yield linear(f"{root}.patch_embedder.input_proj", width, 3 * patch**2)
    yield param(f"{root}.patch_embedder.position_embedding_table", (2, positions, width))
    for name in (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ):
        yield norm(f"{layer}.{name}", width, layers)
    heads = (("q_proj", v.heads), ("k_proj", v.kv_heads), ("v_proj", v.kv_heads))
    for name, count in heads:
        yield from clippable(v, f"{layer}.self_attn.{name}", count * d, width, layers)
    yield norm(f"{layer}.self_attn.q_norm", d, layers)
    yield norm(f"{layer}.self_attn.k_norm", d, layers)
    yield from clippable(v, f"{layer}.self_attn.o_proj", width, v.heads * d, layers)
    yield from clippable(v, f"{layer}.mlp.gate_proj", v.intermediate, width, layers)
    yield from clippable(v, f"{layer}.mlp.up_proj", v.intermediate, width, layers)
    yield from clippable(v, f"{layer}.mlp.down_proj", width, v.intermediate, layers)
    if v.flag("standardize"):
        yield param(f"{root}.std_bias", (width,), buffer=True)
        yield param(f"{root}.std_scale", (width,), buffer=True)
    yield projector("model.embed_vision", width, hidden)


def audio(v: ConfigView, hidden: int) -> Iterator[ParamSpec]:
    """A Conformer: feed-forward, attention, convolution, feed-forward. Arguments as for `vision`."""
    root, width, layers = "model.audio_tower", v.hidden, range(v.layers)
    layer, out = f"{root}.layers.{{layer}}", v.size("output_proj_dims") or v.hidden
    d = width // v.heads if v.heads else 0
    channels = [n for n in v.items("subsampling_conv_channels") if isinstance(n, int)] + [0, 0]
    sampling = f"{root}.subsample_conv_projection"
    for i, (inputs, outputs) in enumerate(((1, channels[0]), (channels[0], channels[1]))):
        yield convolution(f"{sampling}.layer{i}.conv", (outputs, inputs, 3, 3), None)
        yield norm(f"{sampling}.layer{i}.norm", outputs, kind="LayerNorm")
    yield linear(f"{sampling}.input_proj_linear", width, channels[0] // 4 * channels[1])
    for name in ("feed_forward1", "feed_forward2"):
        yield norm(f"{layer}.{name}.pre_layer_norm", width, layers)
        yield from clippable(v, f"{layer}.{name}.ffw_layer_1", 4 * width, width, layers, default=True)
        yield from clippable(v, f"{layer}.{name}.ffw_layer_2", width, 4 * width, layers, default=True)
        yield norm(f"{layer}.{name}.post_layer_norm", width, layers)
    yield norm(f"{layer}.norm_pre_attn", width, layers)
    for name in ("q_proj", "k_proj", "v_proj", "post"):
        yield from clippable(v, f"{layer}.self_attn.{name}", width, width, layers, default=True)
    yield linear(f"{layer}.self_attn.relative_k_proj", width, width, layers)
    yield param(f"{layer}.self_attn.per_dim_scale", (d,), layers)
    yield norm(f"{layer}.norm_post_attn", width, layers)
    yield norm(f"{layer}.lconv1d.pre_layer_norm", width, layers)
    yield from clippable(v, f"{layer}.lconv1d.linear_start", 2 * width, width, layers, default=True)
    yield convolution(f"{layer}.lconv1d.depthwise_conv1d", (width, 1, v.size("conv_kernel_size", 5)), layers)
    yield norm(f"{layer}.lconv1d.conv_norm", width, layers)
    yield from clippable(v, f"{layer}.lconv1d.linear_end", width, width, layers, default=True)
    yield norm(f"{layer}.norm_out", width, layers)
    yield linear(f"{root}.output_proj", out, width, bias=True)
    yield projector("model.embed_audio", out, hidden)


def convolution(module: str, shape: tuple[int, ...], layers: Sequence[int] | None) -> ParamSpec:
    return ParamSpec(
        module=module,
        op="conv",
        shape=shape,
        axes=("N", *[""] * (len(shape) - 1)),
        layers=layers,
        engine=module,
        kind=f"Conv{len(shape) - 2}d",
    )
