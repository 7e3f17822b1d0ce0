"""torchao: tensor subclasses flattened into safetensors; recognised and listed, not unpacked.

A weight's parts carry its name (`_weight_qdata`, `_weight_scale`, ..., in older files `weight.qdata`), and the
rest of the subclass stands in the file's metadata. The layout of `qdata` is the kernel's own.
Source: torchao's prototype/safetensors, vLLM's quantization/torchao.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.tensor import TensorRef
from mlload.quant.formats import matching, plain_modules
from mlload.quant.formats.fields import mapping, strings, text
from mlload.quant.formats.fp8 import FP8_DTYPES
from mlload.quant.formats.tensors import cut
from mlload.quant.spec import Scheme, TensorSpec

__all__ = ["cut", "declare", "dequantize", "detect", "pack", "spec", "unpack"]

QDATA = ("_weight_qdata", "weight_qdata", "weight.qdata", "qdata")


def detect(config: Mapping[str, Any], tensors: Mapping[str, TensorRef]) -> Scheme | None:
    for suffix in QDATA:
        if suffix in tensors:
            dtype = tensors[suffix].dtype
            if dtype in FP8_DTYPES:
                return Scheme("torchao", suffix, 8, "float", "channel", activation=_activation(config))
            return Scheme("torchao", suffix, 8 if dtype == "I8" else 4, "int", "group", activation=_activation(config))
    return None


def _type(config: Mapping[str, Any]) -> str:
    """The config class's name, from `quant_type: {default: {_type: ...}}` or a plain string."""
    kind = config.get("quant_type")
    if isinstance(kind, dict):
        return text(mapping(kind, "default"), "_type") or text(kind, "_type")
    return kind if isinstance(kind, str) else ""


def _activation(config: Mapping[str, Any]) -> Any:
    return "dynamic" if "dynamicactivation" in _type(config).lower().replace("_", "") else None


def declare(config: Mapping[str, Any]) -> Callable[[str], Scheme | None]:
    kind = _type(config).lower()
    skipped = matching.component(strings(config, "modules_to_not_convert"))
    if "float8" in kind or "fp8" in kind:
        scheme = Scheme("torchao", QDATA[0], 8, "float", "channel", activation=_activation(config))
    else:
        scheme = Scheme("torchao", QDATA[0], 4 if "int4" in kind else 8, "int", "group", activation=_activation(config))
    return lambda module: None if skipped(module) or plain_modules.left_plain(module) else scheme


def spec(scheme: Scheme, n: int, k: int, *, bias: bool = False, experts: int | None = None) -> tuple[TensorSpec, ...]:
    _refuse()


def unpack(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> dict[str, Any]:
    _refuse()


def pack(scheme: Scheme, values: Mapping[str, Any]) -> dict[str, Any]:
    _refuse()


def dequantize(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> Any:
    _refuse()


def _refuse() -> NoReturn:
    raise MlloadError("torchao's packed tensors have a layout of the kernel's own, which is not known here")
