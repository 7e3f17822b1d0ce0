"""`Method`: a method class of vLLM, and what it asks its kernels for."""

from __future__ import annotations

from typing import NamedTuple


class Method(NamedTuple):
    """name:       the method class: "Fp8LinearMethod"
    scheme:     class of the scheme inside it, "" for none: "CompressedTensorsWNA16"
    family:     list of kernels that is tried: linear "mixed_precision", "fp8", "fp8_block", "fp8_weight_only",
                "int8", "nvfp4", "nvfp4_weight_only", "mxfp4", "mxfp8"; experts "fp8", "int8", "wna16", "nvfp4",
                "mxfp4", "mxfp4_gpt_oss", "mxfp8", "unquantized"; "" for methods without a choice;
                "unknown" where this project does not know the method
    weight:     key of the weights: "fp8_tensor", "fp8_channel", "fp8_block", "int4", "int8", "nvfp4", ...
    activation: key of the activations, "" for none: "fp8_static_tensor", "fp8_dynamic_token", "fp8_dynamic_128"
    bits:       of a stored weight
    group_size: along K, -1 = one group
    block:      (bn, bk) of block scales, as the kernels see them (refined grids included)
    zero_points: stored and used
    """

    name: str
    scheme: str = ""
    family: str = ""
    weight: str = ""
    activation: str = ""
    bits: int = 16
    group_size: int = -1
    block: tuple[int, int] | None = None
    zero_points: bool = False


UNKNOWN = "unknown"


def capability_number(capability: tuple[int, int] | None) -> int:
    """(9, 0) -> 90; None is judged as 90."""
    return 90 if capability is None else capability[0] * 10 + capability[1]
