"""Which arithmetic a scheme asks for, whatever file format it comes from. No torch."""

from __future__ import annotations

from typing import Literal

from mlload.quant.formats.facts import kernel_only
from mlload.quant.spec import Scheme

Family = Literal[
    "unquantized", "w4a16", "w8a16", "w8a8_int8", "fp8_tensor", "fp8_channel", "fp8_block", "mxfp4", "nvfp4", "other"
]

# Formats whose integers `kernels.stored` reads: codes [N, K], scales and zero points [N, groups].
GROUPED = ("awq", "gptq", "compressed_tensors", "quark")


def family(scheme: Scheme | None) -> Family:
    """The kernel family; "other" is what only the dequantizing reference runs (3-bit codes, nf4, GGUF blocks, ...)."""
    if scheme is None or scheme.kind == "none" or scheme.format == "unquantized":
        return "unquantized"
    if kernel_only(scheme) or scheme.format not in (*GROUPED, "fp8", "modelopt", "mxfp4"):
        return "other"
    if scheme.kind == "int":
        return _integers(scheme)
    if scheme.bits == 4:
        return "mxfp4" if scheme.kind == "mx" else "nvfp4" if scheme.group_size == 16 else "other"
    if scheme.kind == "float" and scheme.bits == 8:
        if scheme.block is not None:
            return "fp8_block"
        if scheme.strategy in ("tensor", "channel"):
            return "fp8_tensor" if scheme.strategy == "tensor" else "fp8_channel"
    return "other"


def _integers(scheme: Scheme) -> Family:
    if scheme.option("planar") or scheme.bits not in (4, 8) or scheme.strategy not in ("tensor", "channel", "group"):
        return "other"
    if scheme.bits == 8 and (scheme.activation_bits or 16) == 8:
        return "w8a8_int8" if scheme.strategy in ("tensor", "channel") and scheme.symmetric else "other"
    return "w4a16" if scheme.bits == 4 else "w8a16"
