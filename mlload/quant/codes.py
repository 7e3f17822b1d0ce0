"""Codes of the findings about quantization: code -> (title, what it means and what to do)."""

from __future__ import annotations

CODES: dict[str, tuple[str, str]] = {
    "QT001": (
        "quantization declared, weights plain",
        "The config declares a quantization, but no tensor is quantized: a block that was left behind when the "
        "weights were converted back. An engine builds quantized layers and finds no scales for them. Remove the "
        "block from the config.",
    ),
    "QT002": (
        "declared in a side file only",
        "The quantization stands in a side file, not in config.json. vLLM reads side files only when "
        "--quantization names the method: without it the model is built unquantized, at full size, and loading "
        "fails on the missing weights. Copy the block into config.json as quantization_config.",
    ),
    "QT003": (
        "declaration that the engine does not understand",
        "The quantization block names no method in a place where vLLM looks, so vLLM ignores it and builds the "
        "model unquantized.",
    ),
    "QT004": (
        "label contradicts the tensors",
        "The config names one format and the tensors have another's shapes. AWQ packs 8 columns (N) in a word in "
        "an order of its own, GPTQ packs 8 rows (K) in plain order: read the wrong way the numbers are noise. The "
        "tensors decide.",
    ),
    "QT005": (
        "layout that only one kernel reads",
        "The tensors are laid out for one kernel (AWQ gemv, Marlin, BitBLAS, ...) and no engine converts them "
        "back. The original weights have to be quantized again in the portable layout.",
    ),
    "QT006": (
        "width or group differs from the config",
        "The shapes of packed tensors follow from the bits and the group size, and they say something else than "
        "the config. An engine allocates by the config and refuses the tensors.",
    ),
    "QT007": (
        "GGUF beside a foreign config",
        "The weights are GGUF, whose types stand in the file, and config.json declares another quantization: it "
        "belongs to the model that the file was converted from.",
    ),
    "QT008": (
        "tensor in a form that the format does not have",
        "A scale or zero point has a shape or dtype that the declared layout does not have, for example zero "
        "points stored unpacked where packed words are expected.",
    ),
    "QT009": (
        "incomplete linear",
        "One of the tensors that make up a quantized linear is missing: scales without weights, or weights without "
        "scales. vLLM does not check for missing tensors of quantized models: the slot keeps whatever was in memory, "
        "and the model answers nonsense.",
    ),
    "QT010": (
        "ignore entry that matches nothing",
        "An entry of the list of unquantized modules names no tensor. Usually a quantizer's wrapper left its own "
        "name at the end, or the prefix changed.",
    ),
    "QT012": (
        "unknown quantization method",
        "No format of this name is known here. A package can add one through the entry point group "
        "mlload.quant_formats.",
    ),
    "QT013": (
        "several widths in one checkpoint",
        "Layers are quantized to different widths. Their tensors say so; an engine that takes one width for all "
        "refuses the others.",
    ),
    "QT014": (
        "packed tensors that no config declares",
        "The tensors are quantized and no config says how: an engine builds the model unquantized and finds none "
        "of its weights.",
    ),
    "QT015": (
        "override that matches nothing",
        "A per-module setting names no module, so that the default applies where something else was meant.",
    ),
    "QT016": (
        "KV scales of several shapes",
        "Some layers have one KV scale for all heads and others one per head. An engine reads one form.",
    ),
    "QT017": (
        "KV scales declared, none stored",
        "The config asks for a quantized KV cache and the checkpoint has no scales: engines then use 1.0.",
    ),
    "QT018": (
        "setting that cannot be read",
        "A field of the quantization config has a value of the wrong kind.",
    ),
    "QT019": (
        "two declarations",
        "Two files declare different quantizations; an engine reads the one in config.json.",
    ),
}
