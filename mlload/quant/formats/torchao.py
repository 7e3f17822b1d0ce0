"""torchao: tensor subclasses flattened into safetensors.

N = out_features, K = in_features, G = group size. The parts of `weight` carry its name: `_weight_qdata`,
`_weight_scale`, `_weight_zero_point`; what else the subclass knows stands in the file's metadata.
float8: qdata f8_e4m3 [N, K], scale [N, 1] or one element
int8:   qdata int8 [N, K], scale and zero_point [N, K/G] ([N, 1] by channel)
int4:   qdata int8 [N, K/2], scale and zero_point [K/G, N]
opaque: anything else is packed for one kernel: recognised, not read.
Sources: torchao's prototype/safetensors and quantization/quantize_/workflows, vLLM's quantization/torchao.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.tensor import TensorRef
from mlload.quant.formats import matching, plain_modules
from mlload.quant.formats.fields import integer, mapping, strings, text
from mlload.quant.formats.fp8 import FP8_DTYPES
from mlload.quant.formats.tensors import cut, group_dim, stacked
from mlload.quant.spec import Dim, Scheme, TensorSpec

__all__ = ["cut", "declare", "dequantize", "detect", "pack", "spec", "unpack"]

QDATA, SCALE, ZERO = "_weight_qdata", "_weight_scale", "_weight_zero_point"


def detect(config: Mapping[str, Any], tensors: Mapping[str, TensorRef]) -> Scheme | None:
    qdata, scale = tensors.get(QDATA), tensors.get(SCALE)
    if qdata is None:
        return _scheme(config, "opaque", 4, None) if "weight.qdata" in tensors else None
    if scale is None or len(qdata.shape) != 2:
        return _scheme(config, "opaque", 4, None)
    n, columns = qdata.shape
    symmetric = ZERO not in tensors
    if qdata.dtype in FP8_DTYPES:
        return _scheme(config, "float8", 8, -1 if scale.shape in ((n, 1), (n,)) else None)
    if qdata.dtype in ("I8", "U8") and len(scale.shape) == 2 and all(scale.shape):
        rows, count = scale.shape
        if rows == n and columns % count == 0 and (count != n or "int4" not in _type(config)):
            return _scheme(config, "int8", 8, -1 if count == 1 else columns // count, symmetric)
        if count == n and 2 * columns % rows == 0:
            return _scheme(config, "int4", 4, 2 * columns // rows, symmetric)
    return _scheme(config, "opaque", 4, None)


def _type(config: Mapping[str, Any]) -> str:
    """The config class's name in lower case, from `quant_type: {default: {_type: ...}}` or a plain string."""
    kind = config.get("quant_type")
    if isinstance(kind, dict):
        return (text(mapping(kind, "default"), "_type") or text(kind, "_type")).lower()
    return kind.lower() if isinstance(kind, str) else ""


def _scheme(config: Mapping[str, Any], layout: str, bits: int, group: int | None, symmetric: bool = True) -> Scheme:
    active: Any = "dynamic" if "dynamicactivation" in _type(config).replace("_", "") else None
    return Scheme(
        format="torchao",
        layout=layout,
        bits=bits,
        kind="float" if layout == "float8" else "int",
        strategy="tensor" if group is None else "channel" if group == -1 else "group",
        group_size=group,
        symmetric=symmetric,
        activation=active,
        activation_bits=8 if active else None,
    )


def declare(config: Mapping[str, Any]) -> Callable[[str], Scheme | None]:
    kind = _type(config)
    skipped = matching.component(strings(config, "modules_to_not_convert"))
    data = mapping(mapping(mapping(config, "quant_type"), "default"), "_data")
    group = integer(data, "group_size", default=128)
    if "float8" in kind or "fp8" in kind:
        scheme = _scheme(config, "float8", 8, -1)
    elif "int4" in kind:
        scheme = _scheme(config, "int4", 4, group, symmetric=False)
    else:
        scheme = _scheme(config, "int8", 8, -1)
    return lambda module: None if skipped(module) or plain_modules.left_plain(module) else scheme


def spec(scheme: Scheme, n: int, k: int, *, bias: bool = False, experts: int | None = None) -> tuple[TensorSpec, ...]:
    """An opaque weight has no known shape: its one tensor is given without dims."""
    groups = group_dim("K", k, scheme.group_size)
    if scheme.layout == "float8":
        scale = (Dim("", size=1),) if scheme.strategy == "tensor" else (Dim("N"), Dim("", size=1))
        tensors = [
            TensorSpec(QDATA, "F8_E4M3", (Dim("N"), Dim("K"))),
            TensorSpec(SCALE, None, scale, role="scale", scalar_ok=scheme.strategy == "tensor"),
        ]
    elif scheme.layout == "int8":
        tensors = [
            TensorSpec(QDATA, "I8", (Dim("N"), Dim("K"))),
            TensorSpec(SCALE, None, (Dim("N"), groups), role="scale"),
            TensorSpec(ZERO, None, (Dim("N"), groups), role="zero", optional=scheme.symmetric),
        ]
    elif scheme.layout == "int4":
        tensors = [
            TensorSpec(QDATA, "I8", (Dim("N"), Dim("K", values=2))),
            TensorSpec(SCALE, None, (groups, Dim("N")), role="scale"),
            TensorSpec(ZERO, None, (groups, Dim("N")), role="zero", optional=scheme.symmetric),
        ]
    else:
        tensors = [TensorSpec(QDATA, None, ())]
    if bias:
        tensors.append(TensorSpec("bias", None, (Dim("N"),), role="bias"))
    return stacked(tuple(tensors), experts)


def unpack(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> dict[str, Any]:
    """float8, int8: weight as stored [N, K]; scale and zero [N, groups]. int4 is packed for a kernel."""
    import numpy as np

    _readable(scheme)
    weight = np.asarray(tensors[QDATA])
    out = {"weight": weight.view(np.uint8) if scheme.layout == "float8" else weight, "scale": tensors[SCALE]}
    return out | {"zero": tensors[ZERO]} if ZERO in tensors else out


def pack(scheme: Scheme, values: Mapping[str, Any]) -> dict[str, Any]:
    _readable(scheme)
    out = {QDATA: values["weight"], SCALE: values["scale"]}
    return out | {ZERO: values["zero"]} if "zero" in values else out


def dequantize(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> Any:
    """float32 [N, K]."""
    from mlload.quant.formats.elements import as_float32, e4m3_table, spread

    parts = unpack(scheme, tensors, n, k)
    weight = parts["weight"]
    values = e4m3_table()[weight] if scheme.layout == "float8" else weight.astype("float32")
    if "zero" in parts:
        values = values - spread(as_float32(parts["zero"]), n, k, scheme.group_size)
    return values * spread(as_float32(parts["scale"]), n, k, scheme.group_size)


def _readable(scheme: Scheme) -> None:
    if scheme.layout not in ("float8", "int8"):
        raise MlloadError(f"torchao's {scheme.layout} weights have a layout of the kernel's own and cannot be read")
