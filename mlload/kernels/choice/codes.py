"""Texts of the kernel rules: `mlload rules CODE` and docs/rules.md show them."""

from __future__ import annotations

# Code -> (title, explanation).
CODES: dict[str, tuple[str, str]] = {
    "KN001": (
        "no kernel for a linear layer",
        "Every kernel that the engine tries for a quantized linear layer of this shape, dtype and GPU declines it, "
        "so the model is not built. The finding lists each kernel with its reason.",
    ),
    "KN002": (
        "no backend for the experts",
        "Every backend that the engine tries for quantized experts of this shape, scheme and GPU declines them, so "
        "the model is not built. Expert parallelism keeps experts whole and often helps; so does a newer GPU.",
    ),
    "KN003": (
        "scheme needs a newer GPU",
        "The scheme of this layer has a least compute capability of its own, above that of the quantization method. "
        "The engine refuses it on older GPUs instead of falling back.",
    ),
    "KN004": (
        "one scale a channel in experts",
        "Experts with packed integer weights and one scale a channel run on Marlin only; where another backend comes "
        "first, the engine stops with a bare assertion.",
    ),
    "KN005": (
        "int8 activations on Blackwell",
        "The engine's CUTLASS kernel is chosen for 8-bit integer weights and activations on every GPU, but was "
        "compiled for compute capabilities below 10.0: the model is built, and its first forward pass fails. "
        "Weight-only 8-bit integers and float8 do run there.",
    ),
}
