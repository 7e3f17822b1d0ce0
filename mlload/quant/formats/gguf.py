"""GGUF: each tensor has a block type; a row of K values is whole blocks.

N = out_features, K = in_features. One tensor, `weight`, of the type's name as its dtype; stored it is bytes
[N, K / values * nbytes] (`checkpoint.gguf_types`). A cut along K is legal at whole blocks, along N anywhere.
Sources: ggml's docs/gguf.md and src/ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.gguf_types import BY_NAME
from mlload.checkpoint.tensor import TensorRef
from mlload.quant.formats.tensors import cut, stacked
from mlload.quant.spec import Dim, Scheme, TensorSpec

__all__ = ["cut", "declare", "dequantize", "detect", "pack", "spec", "unpack"]

# Code width of each type's elements, where its name does not begin with it.
BITS = {"MXFP4": 4, "NVFP4": 4, "TQ1_0": 2, "TQ2_0": 2}


def detect(config: Mapping[str, Any], tensors: Mapping[str, TensorRef]) -> Scheme | None:
    weight = tensors.get("weight")
    if weight is None or weight.dtype not in BY_NAME or BY_NAME[weight.dtype].elements == 1:
        return None
    kind = weight.dtype
    bits = BITS.get(kind) or int(kind.lstrip("IQT")[0])
    return Scheme(
        format="gguf",
        layout=kind,
        bits=bits,
        kind="mx" if kind == "MXFP4" else "float" if kind == "NVFP4" else "codebook" if kind[0] == "I" else "int",
        strategy="group",
        group_size=BY_NAME[kind].elements,
        symmetric=kind in ("Q4_0", "Q5_0", "Q8_0", "Q3_K", "Q6_K", "MXFP4", "NVFP4", "TQ1_0", "TQ2_0"),
    )


def declare(config: Mapping[str, Any]) -> Callable[[str], Scheme | None]:
    """A config cannot declare block types; the file does."""
    return lambda module: None


def spec(scheme: Scheme, n: int, k: int, *, bias: bool = False, experts: int | None = None) -> tuple[TensorSpec, ...]:
    block = BY_NAME[scheme.layout]
    tensors = [TensorSpec("weight", scheme.layout, (Dim("N"), Dim("K", values=block.elements, items=block.nbytes)))]
    if bias:
        tensors.append(TensorSpec("bias", None, (Dim("N"),), role="bias"))
    return stacked(tuple(tensors), experts)


def unpack(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> dict[str, Any]:
    """weight: codes uint8 [N, K] (int8 values for Q8_0, as bits); and the block's own parts, see gguf_blocks."""
    from mlload.quant.formats import gguf_blocks

    kind = _readable(scheme)
    parts = gguf_blocks.decode(kind, gguf_blocks.blocks_of(kind, tensors["weight"], n))
    return {"weight": parts.pop("codes").reshape(n, k), **parts}


def pack(scheme: Scheme, values: Mapping[str, Any]) -> dict[str, Any]:
    from mlload.quant.formats import gguf_blocks

    kind = _readable(scheme)
    codes = values["weight"]
    n = codes.shape[0]
    parts = {**{key: part for key, part in values.items() if key != "weight"}}
    parts["codes"] = codes.reshape(n, -1, BY_NAME[kind].elements)
    return {"weight": gguf_blocks.encode(kind, parts).reshape(n, -1)}


def dequantize(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> Any:
    """float32 [N, K]; NVFP4 without its companion `<name>.scale`."""
    from mlload.quant.formats import gguf_blocks

    kind = _readable(scheme)
    parts = gguf_blocks.decode(kind, gguf_blocks.blocks_of(kind, tensors["weight"], n))
    return gguf_blocks.values(kind, parts).reshape(n, k)


def _readable(scheme: Scheme) -> str:
    from mlload.quant.formats.gguf_blocks import READABLE

    if scheme.layout not in READABLE:
        raise MlloadError(f"GGUF type {scheme.layout} cannot be read yet; readable: {', '.join(sorted(READABLE))}")
    return scheme.layout
