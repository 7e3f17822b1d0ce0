"""ModelOpt: NVIDIA's exports, with the algorithm in `quant_algo`.

N = out_features, K = in_features.
FP8:                       weight f8_e4m3 [N, K], weight_scale and input_scale f32, one element each
FP8_PER_CHANNEL_PER_TOKEN: weight f8_e4m3 [N, K], weight_scale f32 [N]
FP8_PB_WO:                 weight f8_e4m3 [N, K], weight_scale f32 [ceil(N/128), 1, K/128, 1]
NVFP4, W4A16_NVFP4:        weight uint8 [N, K/2], weight_scale f8_e4m3 [N, K/16], weight_scale_2 f32, one element,
                           which multiplies; NVFP4 adds input_scale f32, one element
MXFP8:                     weight f8_e4m3 [N, K], weight_scale uint8 e8m0 [N, K/32]
MIXED_PRECISION:           one of these for each path in `quantized_layers`
A packed weight is called `weight` too: its dtype uint8 is the tell.
Source: vLLM's quantization/modelopt.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.tensor import TensorRef
from mlload.quant.formats import matching, plain_modules
from mlload.quant.formats.fields import integer, mapping, strings, text
from mlload.quant.formats.fp8 import FP8_DTYPES
from mlload.quant.formats.tensors import cut, stacked
from mlload.quant.spec import Dim, Scheme, TensorSpec

__all__ = ["cut", "declare", "dequantize", "detect", "pack", "spec", "unpack"]

BLOCK_ALGOS = ("FP8_PB_WO", "FP8_BLOCK_SCALES")
FP4_ALGOS = ("NVFP4", "W4A16_NVFP4")


def detect(config: Mapping[str, Any], tensors: Mapping[str, TensorRef]) -> Scheme | None:
    weight, scale = tensors.get("weight"), tensors.get("weight_scale")
    if weight is None or scale is None or len(weight.shape) < 2:
        return None
    n, k = weight.shape[-2:]
    if weight.dtype == "U8":
        if "weight_scale_2" not in tensors and scale.dtype not in FP8_DTYPES:
            return None
        groups = scale.shape[-1] if scale.shape else 1
        group = 2 * k // groups if groups and 2 * k % groups == 0 else 16
        return _scheme(_fp4_algo(config, "input_scale" in tensors), group)
    if weight.dtype not in FP8_DTYPES:
        return None
    if len(scale.shape) == 4:
        return _scheme("FP8_PB_WO")
    if scale.dtype in ("U8", "F8_E8M0") and scale.shape[-1:] == (k // 32,):
        return _scheme("MXFP8")
    if scale.shape in ((), (1,)):
        return _scheme("FP8")
    if scale.shape in ((n,), (n, 1)):
        return _scheme("FP8_PER_CHANNEL_PER_TOKEN")
    return None


def _fp4_algo(config: Mapping[str, Any], has_input_scale: bool) -> str:
    """As declared, so that an input scale that is not there counts as missing; by the tensors otherwise."""
    algo = text(config, "quant_algo").upper()
    if algo in FP4_ALGOS:
        groups = [group for group in mapping(config, "config_groups").values() if isinstance(group, dict)]
        weight_only = bool(groups) and all(group.get("input_activations") is None for group in groups)
        return "W4A16_NVFP4" if weight_only else algo
    return "NVFP4" if has_input_scale else "W4A16_NVFP4"


def _scheme(algo: str, group: int | None = None) -> Scheme | None:
    algo = algo.upper()
    if algo in FP4_ALGOS:
        active = algo == "NVFP4"
        return Scheme(
            format="modelopt",
            layout=algo,
            bits=4,
            kind="float",
            strategy="tensor_group",
            group_size=group if group and group > 0 else 16,
            activation="static" if active else None,
            activation_bits=4 if active else None,
        )
    if algo == "FP8":
        return Scheme("modelopt", algo, 8, "float", "tensor", activation="static", activation_bits=8)
    if algo == "FP8_PER_CHANNEL_PER_TOKEN":
        return Scheme("modelopt", algo, 8, "float", "channel", activation="dynamic", activation_bits=8)
    if algo in BLOCK_ALGOS:
        size = group if group and group > 0 else 128
        return Scheme(
            "modelopt", "FP8_PB_WO", 8, "float", "block", size, (size, size), activation="dynamic", activation_bits=8
        )
    if algo == "MXFP8":
        return Scheme("modelopt", algo, 8, "mx", "group", 32, activation="dynamic", activation_bits=8)
    return None


def declare(config: Mapping[str, Any]) -> Callable[[str], Scheme | None]:
    skipped = matching.modelopt(strings(config, "ignore", "exclude_modules", "ignored_layers"))
    algo = text(config, "quant_algo") or ("MXFP8" if text(config, "quant_method").lower() == "mxfp8" else "")
    if not algo:
        algo = _algo_of_groups(config)
    if algo.upper() in FP4_ALGOS:
        algo = _fp4_algo({**config, "quant_algo": algo}, True)
    base = None if algo.upper() == "MIXED_PRECISION" else _scheme(algo, integer(config, "group_size"))
    layers = {
        path: _scheme(text(recipe, "quant_algo"), integer(recipe, "group_size"))
        for path, recipe in mapping(config, "quantized_layers").items()
        if isinstance(recipe, dict)
    }

    def scheme_for(module: str) -> Scheme | None:
        if skipped(module) or plain_modules.in_tower(module):
            return None
        if layers:
            return layers.get(module) or layers.get(module.removeprefix("model.")) or layers.get(f"model.{module}")
        # The head is of a class that this method quantizes unless it is excluded.
        return None if plain_modules.left_plain(module, head=True) else base

    return scheme_for


def _algo_of_groups(config: Mapping[str, Any]) -> str:
    """The algorithm that `config_groups` spell out where `quant_algo` is absent."""
    for group in mapping(config, "config_groups").values():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            if integer(weights, "num_bits") == 4:
                return "NVFP4" if group.get("input_activations") else "W4A16_NVFP4"
            return "FP8"
    return ""


def spec(scheme: Scheme, n: int, k: int, *, bias: bool = False, experts: int | None = None) -> tuple[TensorSpec, ...]:
    one = (Dim("", size=1),)
    if scheme.layout in FP4_ALGOS:
        group = scheme.group_size or 16
        tensors = [
            TensorSpec("weight", "U8", (Dim("N"), Dim("K", values=2))),
            TensorSpec("weight_scale", "F8_E4M3", (Dim("N"), Dim("K", values=group)), role="scale"),
            TensorSpec("weight_scale_2", "F32", one, role="global_scale", scalar_ok=True),
        ]
        if scheme.layout == "NVFP4":
            tensors.append(TensorSpec("input_scale", "F32", one, role="input_scale", scalar_ok=True))
    else:
        tensors = [TensorSpec("weight", "F8_E4M3", (Dim("N"), Dim("K")))]
        if scheme.layout == "MXFP8":
            tensors.append(TensorSpec("weight_scale", "U8", (Dim("N"), Dim("K", values=32)), role="scale"))
        elif scheme.layout == "FP8_PER_CHANNEL_PER_TOKEN":
            tensors.append(TensorSpec("weight_scale", None, (Dim("N"),), role="scale"))
        elif scheme.layout == "FP8_PB_WO":
            bn, bk = scheme.block or (128, 128)
            dims = (Dim("N", values=bn), Dim("", size=1), Dim("K", values=bk), Dim("", size=1))
            tensors.append(TensorSpec("weight_scale", None, dims, role="scale"))
        elif scheme.layout == "FP8":
            tensors.append(TensorSpec("weight_scale", None, one, role="scale", scalar_ok=True))
            tensors.append(TensorSpec("input_scale", None, one, role="input_scale", scalar_ok=True))
        else:
            raise MlloadError(f"no tensor table for ModelOpt's algorithm {scheme.layout!r}")
    if bias:
        tensors.append(TensorSpec("bias", None, (Dim("N"),), role="bias"))
    return stacked(tuple(tensors), experts)


def unpack(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> dict[str, Any]:
    """weight: fp8 or e2m1 codes uint8 [N, K]; scale, global_scale, input_scale as stored."""
    import numpy as np

    from mlload.quant.formats.bitstream import unpack_nibbles

    weight = np.asarray(tensors["weight"]).view(np.uint8)
    out: dict[str, Any] = {key: tensors[key] for key in ("bias", "input_scale") if key in tensors}
    out["weight"] = unpack_nibbles(weight) if scheme.bits == 4 else weight
    out["scale"] = np.asarray(tensors["weight_scale"])
    if "weight_scale_2" in tensors:
        out["global_scale"] = np.asarray(tensors["weight_scale_2"])
    return out


def pack(scheme: Scheme, values: Mapping[str, Any]) -> dict[str, Any]:
    from mlload.quant.formats.bitstream import pack_nibbles

    out: dict[str, Any] = {key: values[key] for key in ("bias", "input_scale") if key in values}
    out["weight"] = pack_nibbles(values["weight"]) if scheme.bits == 4 else values["weight"]
    out["weight_scale"] = values["scale"]
    if "global_scale" in values:
        out["weight_scale_2"] = values["global_scale"]
    return out


def dequantize(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> Any:
    """float32 [N, K]; every scale multiplies."""
    import numpy as np

    from mlload.quant.formats import elements

    parts = unpack(scheme, tensors, n, k)
    scale = parts["scale"]
    if scheme.bits == 4:
        local = elements.e4m3_table()[scale.view(np.uint8)] * elements.as_float32(parts["global_scale"]).reshape(())
        return elements.e2m1_table()[parts["weight"]] * elements.spread(local, n, k, scheme.group_size)
    if scheme.layout == "MXFP8":
        return elements.e4m3_table()[parts["weight"]] * elements.spread(elements.e8m0(scale), n, k, 32)
    scale = elements.as_float32(scale)
    if scheme.block is not None:
        scale = scale.reshape(scale.shape[0], -1)
    return elements.e4m3_table()[parts["weight"]] * elements.spread(scale, n, k, block=scheme.block)
