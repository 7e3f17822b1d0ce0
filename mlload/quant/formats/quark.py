"""Quark: AMD's exports.

N = out_features, K = in_features, G = group size.
fp8:   weight f8_e4m3 [N, K]; weight_scale one element, [N], or [ceil(N/128), ceil(K/128)]; input_scale with static
       activations
int8:  weight int8 [N, K], weight_scale one element or [N], weight_zero_point int8 alike (stored for symmetric
       weights too, all 0), input_scale and input_zero_point int8, one element, with static activations
int4:  weight int32 [K, ceil(N/8)], weight_zero_point int32 [K/G, ceil(N/8)], weight_scale [K/G, N]
mxfp4, mxfp6: weight uint8 [N, K/2] or [N, 3K/4], weight_scale uint8 e8m0 [N, K/32]
int4's nibbles follow `export.pack_method`: "order" is plain, "reorder" is AWQ's order.
Source: vLLM's quantization/quark/*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.tensor import TensorRef
from mlload.quant.formats import awq, matching, plain_modules
from mlload.quant.formats.fields import flag, integer, mapping, pair, strings, text
from mlload.quant.formats.fp8 import FP8_DTYPES, guess_block
from mlload.quant.formats.tensors import cut, group_dim, stacked
from mlload.quant.spec import Dim, Scheme, TensorSpec

__all__ = ["cut", "declare", "dequantize", "detect", "pack", "spec", "unpack"]

BITS = {"fp8": 8, "int8": 8, "int4": 4, "mxfp4": 4, "mxfp6": 6}


def detect(config: Mapping[str, Any], tensors: Mapping[str, TensorRef]) -> Scheme | None:
    weight, scale = tensors.get("weight"), tensors.get("weight_scale")
    if weight is None or scale is None or len(weight.shape) < 2:
        return None
    n, k = weight.shape[-2:]
    static, zero = "input_scale" in tensors, "weight_zero_point" in tensors
    declared = _declared(mapping(config, "global_quant_config"), config)
    if weight.dtype in FP8_DTYPES:
        if scale.shape in ((), (1,)):
            return _scheme("fp8", "tensor", static=static, like=declared)
        if scale.shape in ((n,), (n, 1)):
            return _scheme("fp8", "channel", static=static, like=declared)
        if len(scale.shape) == 2 and all(scale.shape):
            block = (guess_block(n, scale.shape[0]), guess_block(k, scale.shape[1]))
            return _scheme("fp8", "block", block=block, like=declared)
        return None
    if weight.dtype == "I8":
        strategy = "tensor" if scale.shape in ((), (1,)) else "channel"
        # Symmetric weights come with zero points too, which the engine drops (quark_w8a8_int8.py).
        symmetric = not zero if declared is None else declared.symmetric
        return _scheme("int8", strategy, static=static, symmetric=symmetric, like=declared)
    if weight.dtype == "I32" and len(scale.shape) == 2 and scale.shape[0] and k * 8 >= scale.shape[1]:
        groups = scale.shape[0]
        group = -1 if groups == 1 else n // groups
        pack = text(mapping(config, "export"), "pack_method", default="reorder").lower()
        return _scheme("int4", "group", group=group, symmetric=not zero, pack=pack)
    if weight.dtype == "U8" and len(scale.shape) == 2:
        groups = scale.shape[1]
        layout = "mxfp6" if k * 4 == groups * 32 * 3 else "mxfp4"
        return _scheme(layout, "group", group=32, static=static, like=declared)
    return None


def _scheme(
    layout: str,
    strategy: str,
    *,
    group: int | None = None,
    block: tuple[int, int] | None = None,
    static: bool = False,
    symmetric: bool = True,
    pack: str = "",
    like: Scheme | None = None,
) -> Scheme:
    activation = "static" if static else like.activation if like is not None else None
    asymmetric = like is not None and not like.option("input_symmetric", True)
    return Scheme(
        format="quark",
        layout=layout,
        bits=BITS[layout],
        kind="mx" if layout.startswith("mx") else "float" if layout == "fp8" else "int",
        strategy=strategy,
        group_size=group if block is None else block[1],
        block=block,
        symmetric=symmetric,
        activation=activation,
        activation_bits=like.activation_bits if like is not None and activation else 8 if activation else None,
        options=_options(pack, asymmetric),
    )


def _options(pack: str, asymmetric: bool) -> tuple[tuple[str, Any], ...]:
    return ((("pack_method", pack),) if pack else ()) + ((("input_symmetric", False),) if asymmetric else ())


def _declared(config: Mapping[str, Any], whole: Mapping[str, Any]) -> Scheme | None:
    """The scheme of one `*_quant_config` entry."""
    weight = config.get("weight")
    weight = weight[0] if isinstance(weight, list) and weight else weight
    if not isinstance(weight, dict):
        return None
    dtype, qscheme = text(weight, "dtype").lower(), text(weight, "qscheme").lower()
    group, block = integer(weight, "group_size"), pair(weight.get("block_size"))
    layout = {"fp8_e4m3": "fp8", "int8": "int8", "int4": "int4", "uint4": "int4"}.get(dtype)
    if layout is None:
        layout = "mxfp4" if dtype.startswith("fp4") else "mxfp6" if dtype.startswith("fp6") else None
    if layout is None:
        return None
    inputs = config.get("input_tensors")
    inputs = inputs[0] if isinstance(inputs, list) and inputs else inputs
    activation: Any = None
    bits = None
    if isinstance(inputs, dict):
        activation = "dynamic" if flag(inputs, "is_dynamic") else "static"
        bits = 4 if "4" in text(inputs, "dtype")[:4] else 6 if "6" in text(inputs, "dtype")[:4] else 8
    strategy = qscheme.removeprefix("per_") or "tensor"
    pack = text(mapping(whole, "export"), "pack_method", default="reorder").lower() if layout == "int4" else ""
    # As the engine has it: only what says so is symmetric.
    asymmetric = layout == "int8" and isinstance(inputs, dict) and not flag(inputs, "symmetric")
    return Scheme(
        format="quark",
        layout=layout,
        bits=BITS[layout],
        kind="mx" if layout.startswith("mx") else "float" if layout == "fp8" else "int",
        strategy=strategy,
        group_size=32 if layout.startswith("mx") else group if block is None else block[1],
        block=block if strategy == "block" else None,
        symmetric=flag(weight, "symmetric", default=True),
        activation=activation,
        activation_bits=bits,
        options=_options(pack, asymmetric),
    )


def declare(config: Mapping[str, Any]) -> Callable[[str], Scheme | None]:
    """Excluded, then the layer's own entry, then the entry of its type, then the global one."""
    excluded = matching.exact_or_regex(strings(config, "exclude"))
    wild = tuple(name for name in strings(config, "exclude") if "*" in name and not name.startswith("re:"))
    layers = [
        (pattern, _declared(entry, config))
        for pattern, entry in mapping(config, "layer_quant_config").items()
        if isinstance(entry, dict)
    ]
    by_type = mapping(config, "layer_type_quant_config").get("Linear")
    base = _declared(by_type if isinstance(by_type, dict) else mapping(config, "global_quant_config"), config)

    def scheme_for(module: str) -> Scheme | None:
        if excluded(module) or any(fnmatchcase(module, pattern) for pattern in wild):
            return None
        for pattern, scheme in layers:
            if fnmatchcase(module, pattern) or matching.matches(pattern, module):
                return scheme
        return None if plain_modules.left_plain(module) else base

    return scheme_for


def spec(scheme: Scheme, n: int, k: int, *, bias: bool = False, experts: int | None = None) -> tuple[TensorSpec, ...]:
    one = (Dim("", size=1),)
    if scheme.layout == "int4":
        groups = group_dim("K", k, scheme.group_size)
        columns = Dim("N", values=8)
        tensors = [
            TensorSpec("weight", "I32", (Dim("K"), columns)),
            TensorSpec("weight_scale", None, (groups, Dim("N")), role="scale"),
            TensorSpec("weight_zero_point", "I32", (groups, columns), role="zero", optional=scheme.symmetric),
        ]
    elif scheme.layout in ("mxfp4", "mxfp6"):
        packed = Dim("K", values=2) if scheme.layout == "mxfp4" else Dim("K", values=4, items=3)
        tensors = [
            TensorSpec("weight", "U8", (Dim("N"), packed)),
            TensorSpec("weight_scale", "U8", (Dim("N"), Dim("K", values=32)), role="scale"),
        ]
    else:
        dtype = "F8_E4M3" if scheme.layout == "fp8" else "I8"
        scale: tuple[Dim, ...] = one if scheme.strategy == "tensor" else (Dim("N"),)
        if scheme.block is not None:
            scale = (Dim("N", values=scheme.block[0]), Dim("K", values=scheme.block[1]))
        tensors = [
            TensorSpec("weight", dtype, (Dim("N"), Dim("K"))),
            TensorSpec("weight_scale", None, scale, role="scale", scalar_ok=scale == one),
        ]
        if scheme.layout == "int8":
            zero = TensorSpec(
                "weight_zero_point", "I8", scale, role="zero", optional=scheme.symmetric, scalar_ok=scale == one
            )
            tensors.append(zero)
    if scheme.activation == "static" and scheme.layout in ("fp8", "int8", "mxfp4"):
        tensors.append(TensorSpec("input_scale", None, one, role="input_scale", scalar_ok=True))
        if scheme.layout == "int8":
            needless = bool(scheme.option("input_symmetric", True))
            tensors.append(TensorSpec("input_zero_point", "I8", one, role="aux", optional=needless, scalar_ok=True))
    if bias:
        tensors.append(TensorSpec("bias", None, (Dim("N"),), role="bias"))
    return stacked(tuple(tensors), experts)


def _as_awq(scheme: Scheme) -> Scheme:
    """int4 has AWQ's axes; its order of nibbles is AWQ's where it says "reorder"."""
    return Scheme("awq", "gemm", 4, "int", "group", scheme.group_size, symmetric=scheme.symmetric)


def _renamed(tensors: Mapping[str, Any]) -> dict[str, Any]:
    names = {"weight": "qweight", "weight_scale": "scales", "weight_zero_point": "qzeros"}
    return {names.get(key, key): value for key, value in tensors.items()}


def unpack(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> dict[str, Any]:
    """weight: codes [N, K] (int8: values); scale and zero as stored ([N, groups] for int4)."""
    import numpy as np

    from mlload.quant.formats import bitstream

    if scheme.layout == "int4":
        _nibble_order(scheme)
        return awq.unpack(_as_awq(scheme), _renamed(tensors), n, k)
    weight = np.asarray(tensors["weight"])
    out: dict[str, Any] = {key: tensors[key] for key in ("bias", "input_scale", "input_zero_point") if key in tensors}
    out["scale"] = np.asarray(tensors["weight_scale"])
    if scheme.layout == "mxfp4":
        out["weight"] = bitstream.unpack_nibbles(weight)
    elif scheme.layout == "mxfp6":
        out["weight"] = bitstream.unpack_sextets(weight)
    else:
        out["weight"] = weight if scheme.layout == "int8" else weight.view(np.uint8)
    if "weight_zero_point" in tensors:
        out["zero"] = tensors["weight_zero_point"]
    return out


def _nibble_order(scheme: Scheme) -> None:
    if scheme.option("pack_method", "reorder") != "reorder":
        raise MlloadError(
            "Quark int4 with pack_method other than 'reorder' cannot be read: its nibble order is not known"
        )


def pack(scheme: Scheme, values: Mapping[str, Any]) -> dict[str, Any]:
    from mlload.quant.formats import bitstream

    if scheme.layout == "int4":
        _nibble_order(scheme)
        names = {"qweight": "weight", "scales": "weight_scale", "qzeros": "weight_zero_point"}
        return {names.get(key, key): value for key, value in awq.pack(_as_awq(scheme), values).items()}
    out: dict[str, Any] = {key: values[key] for key in ("bias", "input_scale", "input_zero_point") if key in values}
    writers = {"mxfp4": bitstream.pack_nibbles, "mxfp6": bitstream.pack_sextets}
    writer = writers.get(scheme.layout)
    out["weight"] = writer(values["weight"]) if writer else values["weight"]
    out["weight_scale"] = values["scale"]
    if "zero" in values:
        out["weight_zero_point"] = values["zero"]
    return out


def dequantize(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> Any:
    """float32 [N, K]."""
    import numpy as np

    from mlload.quant.formats import elements

    if scheme.layout == "int4":
        _nibble_order(scheme)
        return awq.dequantize(_as_awq(scheme), _renamed(tensors), n, k)
    parts = unpack(scheme, tensors, n, k)
    weight, scale = parts["weight"], parts["scale"]
    if scheme.layout in ("mxfp4", "mxfp6"):
        table = elements.e2m1_table() if scheme.layout == "mxfp4" else elements.e2m3_table()
        return table[weight] * elements.spread(elements.e8m0(scale), n, k, 32)
    values = elements.e4m3_table()[weight] if scheme.layout == "fp8" else weight.astype(np.float32)
    if "zero" in parts and not scheme.symmetric:
        values = values - elements.spread(np.asarray(parts["zero"]), n, k).astype(np.float32)
    return values * elements.spread(elements.as_float32(scale), n, k, block=scheme.block)
