"""An encoder, a projector and a language model: LLaVA, PaliGemma, Mistral 3, InternVL, Gemma 3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures import vision
from mlload.plan.architectures.architecture import Architecture, Params
from mlload.plan.architectures.blocks import linear, norm, param
from mlload.plan.architectures.composite import (
    WHOLE,
    language,
    memory_of_language,
    moved,
    nested,
    on_every_stage,
    tower,
)
from mlload.plan.architectures.vision_encoders import ENCODERS, intern_chat, unbuilt
from mlload.plan.params import ParamSpec

PROJECTOR = "multi_modal_projector"
# As transformers saves since v4.52, and as it did before v5.
ALTERNATES = (
    ("model.language_model.", "language_model.model."),
    ("lm_head", "language_model.lm_head"),
    ("vision_tower.vision_model.", "vision_tower."),
    ("model.vision_tower.", "vision_tower."),
    ("model.vision_tower.vision_model.", "vision_tower."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
)

ALL = ("embedding", "norm", "head")

# (composite config, the tower's) -> modules
Projector = Callable[[ConfigView, ConfigView], Iterator[ParamSpec]]


def feature_layers(c: ConfigView, default: int) -> list[int]:
    """The layers of the encoder whose output is taken; negative ones count from the end."""
    value = c.raw.get("vision_feature_layer", default)
    layers = value if isinstance(value, list) else [value]
    return [n for n in layers if isinstance(n, int) and not isinstance(n, bool)] or [default]


def depth(c: ConfigView, total: int, default: int) -> int:
    """Layers up to the deepest one that is taken. Layer 0 is the embedding's output."""
    return min(max(n if n >= 0 else total + n + 1 for n in feature_layers(c, default)), total)


def two_linears(c: ConfigView, inputs: int, *, bias: bool, cut: bool = True) -> Iterator[ParamSpec]:
    """cut: False where the engine holds both whole on every rank."""
    names = (("linear_1", inputs), ("linear_2", c.hidden))
    if cut:
        fields: dict[str, Any] = {"names": ("linear_1", "linear_2"), "out": c.hidden, "component": "projector"}
        yield from vision.mlp(PROJECTOR, None, inputs, c.hidden, bias=bias, **fields)
        return
    for name, k in names:
        module = f"{PROJECTOR}.{name}"
        yield linear(module, c.hidden, k, bias=bias, quantized=False, kind="Linear", component="projector")


def llava_projector(c: ConfigView, v: ConfigView) -> Iterator[ParamSpec]:
    inputs = v.hidden * len(feature_layers(c, -2))
    yield from two_linears(c, inputs, bias=bool(c.raw.get("multimodal_projector_bias", True)))


def llava_next_projector(c: ConfigView, v: ConfigView) -> Iterator[ParamSpec]:
    """The same, and a vector that ends each row of patches."""
    yield from llava_projector(c, v)
    yield param("image_newline", (c.hidden,), component="projector")


def onevision_projector(c: ConfigView, v: ConfigView) -> Iterator[ParamSpec]:
    inputs = v.hidden * len(feature_layers(c, -1))
    yield from two_linears(c, inputs, bias=bool(c.raw.get("multimodal_projector_bias", True)), cut=False)
    yield param("image_newline", (c.hidden,), component="projector")


def paligemma_projector(c: ConfigView, v: ConfigView) -> Iterator[ParamSpec]:
    # The outer field overrides the tower's.
    width = c.size("projection_dim", 2048)
    module = f"{PROJECTOR}.linear"
    yield linear(module, width, v.hidden, bias=True, quantized=False, kind="Linear", component="projector")


def mistral3_projector(c: ConfigView, v: ConfigView) -> Iterator[ParamSpec]:
    """Joins merge_size^2 neighbouring patches first."""
    merge = c.size("spatial_merge_size", 2) ** 2
    merger = f"{PROJECTOR}.patch_merger.merging_layer"
    yield norm(f"{PROJECTOR}.norm", v.hidden)
    yield linear(merger, v.hidden, v.hidden * merge, quantized=False, component="projector")
    inputs = v.hidden * len(feature_layers(c, -1))
    yield from two_linears(c, inputs, bias=bool(c.raw.get("multimodal_projector_bias", False)))


def internvl_projector(c: ConfigView, v: ConfigView) -> Iterator[ParamSpec]:
    ratio = c.raw.get("downsample_ratio", 0.5)
    side = int(1 / ratio) if isinstance(ratio, (int, float)) and 0 < ratio <= 1 else 2
    yield norm(f"{PROJECTOR}.layer_norm", v.hidden * side**2, bias=True)
    yield from two_linears(c, v.hidden * side**2, bias=True)


def gemma3_projector(c: ConfigView, v: ConfigView) -> Iterator[ParamSpec]:
    yield norm(f"{PROJECTOR}.mm_soft_emb_norm", v.hidden)
    yield param(f"{PROJECTOR}.mm_input_projection_weight", (v.hidden, c.hidden), component="projector")


def rows(
    vision_type: str,
    projector: Projector,
    *,
    layer: int,
    last_norm: bool = True,
    everywhere: tuple[str, ...] = (),
) -> Callable[[ConfigView], Iterator[ParamSpec]]:
    """vision_type: of the encoder where the config names none
    layer:       of the encoder whose output is taken by default
    last_norm:   the engine builds the encoder's last norm where it builds all its layers
    everywhere:  what vLLM's class of the language model builds on every pipeline stage
    """

    def build(c: ConfigView) -> Iterator[ParamSpec]:
        raw = c.raw.get("vision_config")
        named = str(raw.get("model_type", "")) if isinstance(raw, dict) else ""
        kind = named if named in ENCODERS else vision_type
        v = nested(raw, kind)
        encoder = ENCODERS[kind](v, depth(c, v.layers, layer))
        if not last_norm:
            encoder = (unbuilt(spec) if spec.module == "post_layernorm" else spec for spec in encoder)
        yield from tower(moved(encoder, (("", "vision_tower."),), (("", "vision_tower."),)))
        yield from tower(projector(c, v), "projector")
        yield from moved(on_every_stage(language(c)[0](c), *everywhere), WHOLE)

    return build


def internvl_chat(c: ConfigView) -> Iterator[ParamSpec]:
    """InternVL under its authors' names; the language model's config is `llm_config`."""
    v = nested(c.raw.get("vision_config"), "intern_vit_6b")
    ratio, taken = c.raw.get("downsample_ratio", 0.5), c.raw.get("select_layer", -1)
    side = int(1 / ratio) if isinstance(ratio, (int, float)) and 0 < ratio <= 1 else 2
    layer = taken if isinstance(taken, int) and not isinstance(taken, bool) else -1
    built = v.layers + layer + 1 if layer < 0 else layer + 1
    inside = (("", "vision_model."),)
    yield from tower(moved(intern_chat(v, max(min(built, v.layers), 0)), inside, inside))
    found = [
        norm("mlp1.0", v.hidden * side**2, bias=True),
        linear("mlp1.1", c.hidden, v.hidden * side**2, bias=True, quantized=False, kind="Linear"),
        linear("mlp1.3", c.hidden, c.hidden, bias=True, quantized=False, kind="Linear"),
    ]
    yield from tower(found, "projector")
    yield from moved(language(c)[0](c), WHOLE)


def row(model_type: str, build: Params, alternates: tuple[tuple[str, str], ...] = ALTERNATES) -> Architecture:
    return Architecture(model_type, build, memory_of_language, alternates, nested=True)


ARCHITECTURES = (
    row("llava", rows("clip_vision_model", llava_projector, layer=-2)),
    row("llava_next", rows("clip_vision_model", llava_next_projector, layer=-2, last_norm=False)),
    row("llava_onevision", rows("siglip_vision_model", onevision_projector, layer=-1, last_norm=False)),
    # vLLM models/gemma.py:274, models/gemma2.py:259
    row(
        "paligemma",
        rows("siglip_vision_model", paligemma_projector, layer=-1, everywhere=ALL),
    ),
    row("mistral3", rows("pixtral", mistral3_projector, layer=-1)),
    row("internvl_chat", internvl_chat, ()),
    row("internvl", rows("internvl_vision", internvl_projector, layer=-1)),
    # vLLM models/gemma3.py:300, :313, :392
    row("gemma3", rows("siglip_vision_model", gemma3_projector, layer=-1, everywhere=ALL)),
)
