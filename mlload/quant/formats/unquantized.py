"""Plain weights: one float tensor [N, K]."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlload.checkpoint.tensor import TensorRef
from mlload.quant.formats.tensors import cut, stacked
from mlload.quant.spec import Dim, Scheme, TensorSpec

__all__ = ["cut", "declare", "dequantize", "detect", "pack", "spec", "unpack"]

FLOATS = {"F16": 16, "BF16": 16, "F32": 32, "F64": 64}


def detect(config: Mapping[str, Any], tensors: Mapping[str, TensorRef]) -> Scheme | None:
    weight = tensors.get("weight")
    if weight is None or weight.dtype not in FLOATS:
        return None
    return Scheme("unquantized", bits=FLOATS[weight.dtype], kind="none", strategy="none")


def declare(config: Mapping[str, Any]) -> Callable[[str], Scheme | None]:
    return lambda module: None


def spec(scheme: Scheme, n: int, k: int, *, bias: bool = False, experts: int | None = None) -> tuple[TensorSpec, ...]:
    tensors = [TensorSpec("weight", None, (Dim("N"), Dim("K")))]
    if bias:
        tensors.append(TensorSpec("bias", None, (Dim("N"),), role="bias"))
    return stacked(tuple(tensors), experts)


def unpack(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> dict[str, Any]:
    return dict(tensors)


def pack(scheme: Scheme, values: Mapping[str, Any]) -> dict[str, Any]:
    return dict(values)


def dequantize(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> Any:
    from mlload.quant.formats.elements import as_float32

    return as_float32(tensors["weight"])
