"""bitsandbytes: nf4 and fp4 over the flattened matrix, int8 by row.

N = out_features, K = in_features, bs = blocksize (64), values in row-major order.
nf4, fp4: weight uint8 [ceil(N*K/2), 1], the even value in the HIGH nibble; weight.absmax f32 [ceil(N*K/bs)];
    weight.quant_map f32 [16]; weight.quant_state.bitsandbytes__nf4 (or __fp4): uint8, JSON text.
    Nested: absmax is uint8, and weight.nested_absmax f32, weight.nested_quant_map f32 [256] are added:
    absmax = nested_quant_map[u8] * nested_absmax[i // 256] + nested_offset
int8: weight int8 [N, K], SCB f32 [N] (a row's absmax), weight_format uint8 scalar; value = int8 * SCB / 127
Since the flattened matrix is packed, a cut along K is no slice of it, and a cut along N is one only at whole
blocks.
Sources: bitsandbytes' functional.py, nn/modules.py, backends/default/ops.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd
from typing import Any

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.tensor import TensorRef
from mlload.quant.formats import matching, plain_modules
from mlload.quant.formats.fields import flag, integer, positive, strings, text
from mlload.quant.formats.tensors import cut
from mlload.quant.spec import Dim, Scheme, TensorSpec

__all__ = ["cut", "declare", "dequantize", "detect", "pack", "spec", "unpack"]

STATE = "weight.quant_state.bitsandbytes__"


def detect(config: Mapping[str, Any], tensors: Mapping[str, TensorRef]) -> Scheme | None:
    weight, absmax = tensors.get("weight"), tensors.get("weight.absmax")
    if weight is None:
        return None
    if "SCB" in tensors:
        return _scheme("int8") if weight.dtype == "I8" else None
    if absmax is None:
        return None
    layout = "fp4" if STATE + "fp4" in tensors else "nf4"
    packed, block = _elements(weight.shape) * _bytes(weight.dtype) * 2, 64
    count = _elements(absmax.shape)
    if count and packed % count == 0 and packed // count in (64, 128, 256, 512, 1024, 2048, 4096):
        block = packed // count
    return _scheme(layout, block, nested="weight.nested_absmax" in tensors, storage=weight.dtype)


def _elements(shape: tuple[int, ...]) -> int:
    total = 1
    for length in shape:
        total *= length
    return total


def _bytes(dtype: str) -> int:
    return {"U8": 1, "I8": 1, "F16": 2, "BF16": 2, "F32": 4}.get(dtype, 1)


def _scheme(layout: str, block: int = 64, *, nested: bool = False, storage: str = "U8") -> Scheme:
    if layout == "int8":
        return Scheme("bitsandbytes", "int8", 8, "int", "channel", -1, activation="dynamic", activation_bits=8)
    options: tuple[tuple[str, Any], ...] = (("nested_blocksize", 256),) if nested else ()
    if storage != "U8":
        options += (("storage", storage),)
    return Scheme(
        "bitsandbytes",
        layout,
        4,
        "codebook",
        "block",
        block,
        options=options,
    )


def declare(config: Mapping[str, Any]) -> Callable[[str], Scheme | None]:
    skipped = matching.component(strings(config, "llm_int8_skip_modules"))
    if flag(config, "load_in_8bit", "_load_in_8bit"):
        scheme = _scheme("int8")
    else:
        layout = text(config, "bnb_4bit_quant_type", default="fp4").lower()
        block = positive(config, "bnb_4bit_blocksize", default=64)
        nested = flag(config, "bnb_4bit_use_double_quant")
        scheme = _scheme(layout if layout in ("nf4", "fp4") else "fp4", block, nested=nested)
    return lambda module: None if skipped(module) or plain_modules.left_plain(module) else scheme


def spec(scheme: Scheme, n: int, k: int, *, bias: bool = False, experts: int | None = None) -> tuple[TensorSpec, ...]:
    """`experts` is not written stacked by bitsandbytes and is refused."""
    if experts is not None:
        raise MlloadError("bitsandbytes stores no stacked experts")
    if scheme.layout == "int8":
        tensors = [
            TensorSpec("weight", "I8", (Dim("N"), Dim("K"))),
            TensorSpec("SCB", "F32", (Dim("N"),), role="scale"),
            TensorSpec("weight_format", "U8", (), role="aux", optional=True, scalar_ok=True),
        ]
    else:
        block, nested = scheme.group_size or 64, scheme.option("nested_blocksize")
        storage = scheme.option("storage", "U8")
        tensors = [
            TensorSpec("weight", storage, (_flat(k, 2 * _bytes(storage)), Dim("", size=1)), flat=True),
            TensorSpec("weight.absmax", "U8" if nested else "F32", (_flat(k, block),), role="scale", flat=True),
            TensorSpec("weight.quant_map", "F32", (Dim("", size=16),), role="aux"),
            TensorSpec(f"{STATE}{scheme.layout}", "U8", (), role="aux"),
        ]
        if nested:
            tensors.append(
                TensorSpec("weight.nested_absmax", "F32", (_flat(k, block * nested),), role="global_scale", flat=True)
            )
            tensors.append(TensorSpec("weight.nested_quant_map", "F32", (Dim("", size=256),), role="aux"))
    if bias:
        tensors.append(TensorSpec("bias", None, (Dim("N"),), role="bias"))
    return tuple(tensors)


def _flat(k: int, per_item: int) -> Dim:
    """Rows of K values, `per_item` values a stored element, counted over the flattened matrix."""
    common = gcd(k, per_item)
    return Dim("N", values=per_item // common, items=k // common, dense=True)


def unpack(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> dict[str, Any]:
    """nf4, fp4: weight: codes uint8 [N, K]; scale: f32 absmax of each block (nested ones put together);
    code: the 16 levels. int8: weight int8 [N, K]; scale: SCB."""
    import numpy as np

    if scheme.layout == "int8":
        out = {"weight": np.asarray(tensors["weight"]), "scale": np.asarray(tensors["SCB"])}
        return {**out, **{key: tensors[key] for key in ("bias", "weight_format") if key in tensors}}
    from mlload.quant.formats.bitstream import unpack_nibbles

    packed = np.ascontiguousarray(tensors["weight"]).reshape(-1).view(np.uint8)
    codes = unpack_nibbles(packed, high_first=True)[: n * k].reshape(n, k)
    out = {"weight": codes, "code": np.asarray(tensors["weight.quant_map"], np.float32)}
    absmax = np.asarray(tensors["weight.absmax"])
    state = _state(scheme, tensors)
    if "weight.nested_absmax" in tensors:
        nested = np.asarray(tensors["weight.nested_absmax"], np.float32)
        size = integer(state, "nested_blocksize", default=256) or 256
        levels = np.asarray(tensors["weight.nested_quant_map"], np.float32)
        offset = state.get("nested_offset")
        scale = levels[absmax] * nested.repeat(size)[: absmax.size]
        absmax = scale + np.float32(offset if isinstance(offset, (int, float)) else 0.0)
    out["scale"] = absmax
    return {**out, **{key: tensors[key] for key in ("bias",) if key in tensors}}


def _state(scheme: Scheme, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON that the quant_state tensor holds; {} where there is none to read."""
    import json

    raw = tensors.get(f"{STATE}{scheme.layout}")
    if raw is None:
        return {}
    try:
        state = json.loads(bytes(bytearray(raw)))
    except ValueError:
        return {}
    return state if isinstance(state, dict) else {}


def pack(scheme: Scheme, values: Mapping[str, Any]) -> dict[str, Any]:
    """The stored tensors of what `unpack` gives; absmax is written plain, not nested."""
    import json

    import numpy as np

    if scheme.layout == "int8":
        out = {"weight": values["weight"], "SCB": values["scale"]}
        return {**out, **{key: values[key] for key in ("bias", "weight_format") if key in values}}
    from mlload.quant.formats.bitstream import pack_nibbles

    codes = np.asarray(values["weight"], np.uint8)
    flat = codes.reshape(-1)
    if flat.size % 2:
        flat = np.append(flat, np.uint8(0))
    state = {
        "quant_type": scheme.layout,
        "blocksize": scheme.group_size,
        "dtype": "bfloat16",
        "shape": list(codes.shape),
    }
    return {
        **{key: values[key] for key in ("bias",) if key in values},
        "weight": pack_nibbles(flat, high_first=True).reshape(-1, 1),
        "weight.absmax": np.asarray(values["scale"], np.float32),
        "weight.quant_map": np.asarray(values["code"], np.float32),
        f"{STATE}{scheme.layout}": np.frombuffer(json.dumps(state).encode(), np.uint8),
    }


def dequantize(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> Any:
    """float32 [N, K]."""
    import numpy as np

    parts = unpack(scheme, tensors, n, k)
    scale = parts["scale"].astype(np.float32)
    if scheme.layout == "int8":
        return parts["weight"].astype(np.float32) * (scale / np.float32(127)).reshape(-1, 1)
    spread = scale.repeat(scheme.group_size or 64)[: n * k].reshape(n, k)
    return parts["code"][parts["weight"]] * spread
