"""Idefics3 and SmolVLM: SigLIP without a head, one linear over joined patches, Llama."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures import vision
from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.blocks import linear, norm, table
from mlload.plan.architectures.composite import language, memory_of_language, moved, nested, tower
from mlload.plan.architectures.vision_encoders import patches, pre_norm
from mlload.plan.params import ParamSpec


def encoder(v: ConfigView) -> Iterator[ParamSpec]:
    root, patch = "model.vision_model", vision.side(v, "patch_size")
    channels = v.size("num_channels", 3)
    yield vision.patch_conv(f"{root}.embeddings.patch_embedding", v.hidden, (channels, patch, patch), bias=True)
    yield table(f"{root}.embeddings.position_embedding", patches(v), v.hidden, cut=False)
    yield from pre_norm(v, f"{root}.encoder.layers.{{layer}}")
    yield norm(f"{root}.post_layernorm", v.hidden, bias=True)


def idefics3(c: ConfigView) -> Iterator[ParamSpec]:
    v = nested(c.raw.get("vision_config"), f"{c.model_type}_vision")
    yield from tower(encoder(v))
    joined = v.hidden * c.size("scale_factor", 2) ** 2
    projector = linear("model.connector.modality_projection.proj", c.hidden, joined, component="projector")
    yield from tower([projector], "projector")
    inside = (("model.", "model.text_model."),)
    yield from moved(language(c)[0](c), inside, inside)


ARCHITECTURES = (
    Architecture("idefics3", idefics3, memory_of_language, nested=True),
    Architecture("smolvlm", idefics3, memory_of_language, nested=True),
)
