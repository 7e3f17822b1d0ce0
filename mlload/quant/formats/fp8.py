"""FP8 as Hugging Face configs declare it (`quant_method: fp8`), and fbgemm's per-channel variant.

N = out_features, K = in_features, (bn, bk) = block.
weight f8_e4m3 [N, K], with
block:   weight_scale_inv [ceil(N/bn), ceil(K/bk)] f32 (or bf16, or e8m0), activations quantized as they come
tensor:  weight_scale, one element; "static" adds input_scale, one element
channel: weight_scale [N, 1] (fbgemm_fp8)
mxfp4:   experts of a config that says `expert_dtype: fp4`: weight int8 [N, K/2], low nibble first, scale e8m0 [N, K/32]
Some writers call the block scales `scale`.
Every scale multiplies, `weight_scale_inv` too, whatever its name says.
Sources: vLLM's quantization/fp8.py and fbgemm_fp8.py, transformers' finegrained_fp8 integration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlload.checkpoint.tensor import TensorRef
from mlload.quant.formats import matching, plain_modules
from mlload.quant.formats.fields import pair, strings, text
from mlload.quant.formats.tensors import cut, stacked
from mlload.quant.spec import Dim, Scheme, TensorSpec

__all__ = ["cut", "declare", "dequantize", "detect", "pack", "spec", "unpack"]

FP8_DTYPES = frozenset({"F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})


def detect(config: Mapping[str, Any], tensors: Mapping[str, TensorRef]) -> Scheme | None:
    weight = tensors.get("weight")
    if weight is None or len(weight.shape) < 2:
        return None
    renamed = "scale" in tensors and "weight_scale_inv" not in tensors
    inverse, scale = tensors.get("scale" if renamed else "weight_scale_inv"), tensors.get("weight_scale")
    if weight.dtype in ("I8", "U8") and inverse is not None and inverse.dtype in ("F8_E8M0", "U8"):
        fp4 = len(inverse.shape) >= 2 and inverse.shape[-1] * 16 == weight.shape[-1]
        return _fp4(renamed) if fp4 else None
    if weight.dtype not in FP8_DTYPES:
        return None
    # Where it is declared, a scale that is not there is missing.
    static = "input_scale" in tensors or text(config, "activation_scheme").lower() == "static"
    n, k = weight.shape[-2:]
    if inverse is not None and len(inverse.shape) >= 2 and inverse.shape[-2:] != (1, 1):
        block = pair(config.get("weight_block_size")) or (128, 128)
        rows, columns = inverse.shape[-2:]
        if (-(-n // block[0]), -(-k // block[1])) != (rows, columns) and rows and columns:
            block = (guess_block(n, rows), guess_block(k, columns))
        return _scheme(config, "block", block=block, renamed=renamed)
    if scale is not None and len(scale.shape) >= 1 and scale.shape[0] == n and n > 1:
        return _scheme(config, "channel")
    if scale is not None and scale.shape not in ((), (1,), (1, 1)):
        return None
    return _scheme(config, "tensor", static=static)


def guess_block(length: int, count: int) -> int:
    """The power of two that cuts `length` into `count` blocks, else the even share; at least 1, also for an axis or a
    count of nothing."""
    for size in (128, 64, 32, 16, 256, 512):
        if -(-length // size) == count:
            return size
    return max(1, -(-length // max(1, count)))


def _scheme(
    config: Mapping[str, Any],
    strategy: str,
    *,
    block: tuple[int, int] | None = None,
    static: bool = False,
    renamed: bool = False,
) -> Scheme:
    fbgemm = text(config, "quant_method").lower() == "fbgemm_fp8"
    return Scheme(
        format="fp8",
        layout="fbgemm" if fbgemm else "block" if block else "static" if static else strategy,
        bits=8,
        kind="float",
        strategy="channel" if fbgemm else strategy,
        group_size=None if block is None else block[1],
        block=block,
        activation="static" if static and not fbgemm else "dynamic",
        activation_bits=8,
        options=(("scale", "scale"),) if renamed else (),
    )


def _fp4(renamed: bool) -> Scheme:
    options = (("scale", "scale"),) if renamed else ()
    return Scheme("fp8", "mxfp4", 4, "mx", "group", 32, options=options)


def declare(config: Mapping[str, Any]) -> Callable[[str], Scheme | None]:
    block = pair(config.get("weight_block_size"))
    static = text(config, "activation_scheme").lower() == "static"
    scheme = _scheme(config, "block" if block else "tensor", block=block, static=static and block is None)
    skipped = matching.exact(strings(config, "ignored_layers", "modules_to_not_convert"))
    experts = _fp4(False) if "fp4" in text(config, "expert_dtype", "store_dtype").lower() else scheme

    def scheme_for(module: str) -> Scheme | None:
        if skipped(module) or plain_modules.left_plain(module):
            return None
        return experts if ".experts." in module else scheme

    return scheme_for


def spec(scheme: Scheme, n: int, k: int, *, bias: bool = False, experts: int | None = None) -> tuple[TensorSpec, ...]:
    tensors = [TensorSpec("weight", "F8_E4M3", (Dim("N"), Dim("K")))]
    name = scheme.option("scale", "weight_scale_inv")
    if scheme.layout == "mxfp4":
        tensors = [TensorSpec("weight", None, (Dim("N"), Dim("K", values=2)))]
        tensors.append(TensorSpec(name, None, (Dim("N"), Dim("K", values=32)), role="scale"))
    elif scheme.block is not None:
        bn, bk = scheme.block
        tensors.append(TensorSpec(name, None, (Dim("N", values=bn), Dim("K", values=bk)), role="scale"))
    elif scheme.strategy == "channel":
        tensors.append(TensorSpec("weight_scale", None, (Dim("N"), Dim("", size=1)), role="scale"))
    else:
        tensors.append(TensorSpec("weight_scale", None, (Dim("", size=1),), role="scale", scalar_ok=True))
    if scheme.activation == "static":
        tensors.append(TensorSpec("input_scale", None, (Dim("", size=1),), role="input_scale", scalar_ok=True))
    if bias:
        tensors.append(TensorSpec("bias", None, (Dim("N"),), role="bias"))
    return stacked(tuple(tensors), experts)


def unpack(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> dict[str, Any]:
    """weight: fp8 (or e2m1) codes uint8 [N, K]; scale, and input_scale where stored, as they are."""
    import numpy as np

    from mlload.quant.formats.bitstream import unpack_nibbles

    out = {key: tensors[key] for key in ("bias", "input_scale") if key in tensors}
    codes = np.asarray(tensors["weight"]).view(np.uint8)
    weight = unpack_nibbles(codes) if scheme.layout == "mxfp4" else codes
    return {**out, "weight": weight, "scale": np.asarray(tensors[_scale_name(scheme)])}


def pack(scheme: Scheme, values: Mapping[str, Any]) -> dict[str, Any]:
    from mlload.quant.formats.bitstream import pack_nibbles

    out = {key: values[key] for key in ("bias", "input_scale") if key in values}
    weight = pack_nibbles(values["weight"]) if scheme.layout == "mxfp4" else values["weight"]
    return {**out, "weight": weight, _scale_name(scheme): values["scale"]}


def _scale_name(scheme: Scheme) -> str:
    fine = scheme.block is not None or scheme.layout == "mxfp4"
    return str(scheme.option("scale", "weight_scale_inv" if fine else "weight_scale"))


def dequantize(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> Any:
    """element * scale as float32 [N, K]."""
    from mlload.quant.formats.elements import as_float32, e2m1_table, e4m3_table, e8m0, spread

    parts = unpack(scheme, tensors, n, k)
    scale = parts["scale"]
    scale = e8m0(scale) if scale.dtype.itemsize == 1 else as_float32(scale)
    table = e2m1_table() if scheme.layout == "mxfp4" else e4m3_table()
    return table[parts["weight"]] * spread(scale, n, k, scheme.group_size, scheme.block)
