"""Format modules by name: ours are imported when asked for, others come from entry points.

A package adds a format with an entry point in the group `mlload.quant_formats` whose name is the format's
and whose value is a module with `detect`, `declare`, `spec`, `unpack`, `pack`, `cut` and `dequantize`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Protocol, cast

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.tensor import TensorRef
from mlload.quant.formats.tensors import CutAxis, Misaligned, Piece
from mlload.quant.spec import Scheme, TensorSpec

NAMES = (
    "awq",
    "gptq",
    "compressed_tensors",
    "fp8",
    "modelopt",
    "mxfp4",
    "quark",
    "auto_round",
    "bitsandbytes",
    "torchao",
    "mlx",
    "gguf",
    "unquantized",
)

# What configs call a method -> our module.
METHODS = {
    "awq": "awq",
    "auto_awq": "awq",
    "awq_marlin": "awq",
    "gptq": "gptq",
    "auto_gptq": "gptq",
    "gptq_marlin": "gptq",
    "gptq_v2": "gptq",
    "marlin": "gptq",
    "gptq_bitblas": "gptq",
    "compressed-tensors": "compressed_tensors",
    "fp8": "fp8",
    "fbgemm_fp8": "fp8",
    "deepseek_v4_fp8": "fp8",
    "modelopt": "modelopt",
    "modelopt_fp4": "modelopt",
    "modelopt_mxfp8": "modelopt",
    "modelopt_mixed": "modelopt",
    "nvfp4": "modelopt",
    "mxfp8": "modelopt",
    "mxfp4": "mxfp4",
    "gpt_oss_mxfp4": "mxfp4",
    "quark": "quark",
    "auto-round": "auto_round",
    "inc": "auto_round",
    "intel/auto-round": "auto_round",
    "bitsandbytes": "bitsandbytes",
    "torchao": "torchao",
    "mlx": "mlx",
    "gguf": "gguf",
}

GROUP = "mlload.quant_formats"


class Format(Protocol):
    """The names that every format module has.

    Tensors of one linear are given by suffix. Arrays are numpy's; `unpack` gives integer codes or float
    elements [N, K], `dequantize` float32 [N, K], `pack` the stored tensors by suffix.
    """

    def detect(self, config: Mapping[str, Any], tensors: Mapping[str, TensorRef]) -> Scheme | None:
        """The scheme of one linear as its tensors show it (what shapes cannot tell comes from the config), None
        where they are not this format's."""
        ...

    def declare(self, config: Mapping[str, Any]) -> Callable[[str], Scheme | None]:
        """Module path -> scheme, as the config alone declares it."""
        ...

    def spec(
        self, scheme: Scheme, n: int, k: int, *, bias: bool = False, experts: int | None = None
    ) -> tuple[TensorSpec, ...]:
        """The tensors that stand for an [n, k] linear."""
        ...

    def cut(self, spec: TensorSpec, axis: CutAxis, start: int, stop: int, length: int) -> Piece | Misaligned: ...

    def unpack(self, scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> dict[str, Any]: ...

    def pack(self, scheme: Scheme, values: Mapping[str, Any]) -> dict[str, Any]: ...

    def dequantize(self, scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> Any: ...


@cache
def get(name: str) -> Format:
    """The module of a format, by its name or by what configs call the method."""
    ours = name if name in NAMES else METHODS.get(name.lower())
    if ours is not None:
        return cast(Format, import_module(f"mlload.quant.formats.{ours}"))
    for entry in _entry_points():
        if entry.name == name:
            return cast(Format, entry.load())
    known = ", ".join(sorted(NAMES))
    raise MlloadError(f"unknown quantization format {name!r}; known: {known}")


def known(method: str) -> bool:
    """Whether a config's method has a module, ours or a third party's."""
    return method in NAMES or method.lower() in METHODS or any(entry.name == method for entry in _entry_points())


@cache
def _entry_points() -> tuple[Any, ...]:
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP))
