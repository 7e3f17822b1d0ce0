"""A model in a few words, the same in every report: class, parameters, format, bytes."""

from __future__ import annotations

from mlload.cli.quantities import count, size
from mlload.plan.model import Model
from mlload.quant.spec import QuantSpec

DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}


def model_words(model: Model) -> list[str]:
    """["LlamaForCausalLM", "70.6 B parameters", "awq 4-bit g128"], and for a config alone what it would weigh."""
    words = [class_name(model), parameters(model)]
    words.append(quantized(model.quant) if model.quant is not None else DTYPES.get(model.dtype, model.dtype))
    if model.config_only:
        what = "no weights here" if model.checkpoint.cut is None else "a folder of ranks"
        words.append(f"{what}, {size(sum(model.bytes_by_component.values()))} expected")
    return words


def class_name(model: Model) -> str:
    names = model.config.architectures
    return names[0] if names else model.config.model_type or "unknown architecture"


def parameters(model: Model) -> str:
    words = f"{count(model.parameters_total)} parameters"
    if model.parameters_active < model.parameters_total:
        words += f" ({count(model.parameters_active)} active)"
    if model.parameters_draft:
        words += f" and {count(model.parameters_draft)} of draft layers"
    return words


def quantized(quant: QuantSpec) -> str:
    """ "awq 4-bit g128"."""
    if not quant.schemes:
        return quant.method
    scheme = quant.schemes[0]
    words = f"{quant.method} {scheme.bits}-bit"
    if scheme.block is not None:
        return words + f" blocks of {scheme.block[0]}x{scheme.block[1]}"
    return words + (f" g{scheme.group_size}" if scheme.group_size and scheme.group_size > 0 else "")
