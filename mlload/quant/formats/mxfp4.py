"""MXFP4 experts as gpt-oss stores them: all experts of a layer stacked.

E = experts, N = out_features, K = in_features of one expert.
gpt_oss: `..._blocks` uint8 [E, N, K/32, 16], `..._scales` uint8 e8m0 [E, N, K/32], `..._bias` bf16 [E, N]
openai:  the same tensors as `.blocks` and `.scales` (their own files' names)
A block is 32 values along K in 16 bytes, low nibble first; value = e2m1 * 2**(scale - 127). Rows of gate_up
alternate: 2j is gate j, 2j + 1 is up j, so that a rank takes pairs of rows.
Sources: openai/gpt-oss gpt_oss/torch/weights.py, vLLM's models/gpt_oss.py, transformers' mxfp4 integration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlload.checkpoint.tensor import TensorRef
from mlload.quant.formats.tensors import cut, stacked
from mlload.quant.spec import Dim, Scheme, TensorSpec

__all__ = ["cut", "declare", "dequantize", "detect", "pack", "spec", "unpack"]

SUFFIXES = {"gpt_oss": ("_blocks", "_scales", "_bias"), "openai": ("blocks", "scales", "bias")}


def detect(config: Mapping[str, Any], tensors: Mapping[str, TensorRef]) -> Scheme | None:
    for layout, (blocks, scales, _) in SUFFIXES.items():
        packed, scale = tensors.get(blocks), tensors.get(scales)
        if packed is None or scale is None or packed.dtype != "U8":
            continue
        if packed.shape[-1:] == (16,) and packed.shape[:-1] == scale.shape:
            return _scheme(layout)
    return None


def _scheme(layout: str) -> Scheme:
    return Scheme(format="mxfp4", layout=layout, bits=4, kind="mx", strategy="group", group_size=32)


def declare(config: Mapping[str, Any]) -> Callable[[str], Scheme | None]:
    """Experts only: the engine leaves every dense linear alone, and does not read `modules_to_not_convert`."""
    scheme = _scheme("gpt_oss")
    return lambda module: scheme if ".experts" in module and "router" not in module else None


def spec(scheme: Scheme, n: int, k: int, *, bias: bool = False, experts: int | None = None) -> tuple[TensorSpec, ...]:
    blocks, scales, offset = SUFFIXES[scheme.layout]
    tensors = [
        TensorSpec(blocks, "U8", (Dim("N"), Dim("K", values=32), Dim("", size=16))),
        TensorSpec(scales, "U8", (Dim("N"), Dim("K", values=32)), role="scale"),
    ]
    if bias:
        tensors.append(TensorSpec(offset, None, (Dim("N"),), role="bias"))
    return stacked(tuple(tensors), experts)


def unpack(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> dict[str, Any]:
    """weight: e2m1 codes uint8 [..., N, K]; scale: uint8 e8m0 [..., N, K/32]."""
    import numpy as np

    from mlload.quant.formats.bitstream import unpack_nibbles

    blocks, scales, offset = SUFFIXES[scheme.layout]
    codes = unpack_nibbles(np.asarray(tensors[blocks]))
    out = {"weight": codes.reshape(*codes.shape[:-2], k), "scale": np.asarray(tensors[scales])}
    return {**out, "bias": tensors[offset]} if offset in tensors else out


def pack(scheme: Scheme, values: Mapping[str, Any]) -> dict[str, Any]:
    import numpy as np

    from mlload.quant.formats.bitstream import pack_nibbles

    blocks, scales, offset = SUFFIXES[scheme.layout]
    codes = np.asarray(values["weight"])
    packed = pack_nibbles(codes).reshape(*codes.shape[:-1], -1, 16)
    out = {blocks: packed, scales: values["scale"]}
    return {**out, offset: values["bias"]} if "bias" in values else out


def dequantize(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> Any:
    """float32 [..., N, K]."""
    from mlload.quant.formats.elements import e2m1_table, e8m0

    parts = unpack(scheme, tensors, n, k)
    return e2m1_table()[parts["weight"]] * e8m0(parts["scale"]).repeat(32, axis=-1)
