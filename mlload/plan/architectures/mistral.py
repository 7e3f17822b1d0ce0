"""Mistral's dense models."""

from __future__ import annotations

from mlload.plan.architectures.architecture import Architecture
from mlload.plan.architectures.decoder import decoder
from mlload.plan.architectures.memory import by_layer_types

ARCHITECTURES = (
    Architecture("mistral", decoder(rotary_tables=True), by_layer_types),
    Architecture("ministral", decoder(), by_layer_types),
    Architecture("ministral3", decoder(), by_layer_types),
)
