"""The method of a quantized dense layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlload.profiles.layers import EngineLayer
from mlload.profiles.methods.method import UNKNOWN, Method
from mlload.profiles.profile import Profile

if TYPE_CHECKING:
    from mlload.quant.spec import Scheme


def linear_method(layer: EngineLayer, scheme: Scheme, quant: str, cc: int, profile: Profile) -> Method:
    """quant: the resolved method; cc: compute capability, 90 = 9.0."""
    if quant == "auto_awq":
        return _awq(layer, scheme, cc, profile)
    if quant == "auto_gptq":
        return _gptq(scheme)
    if quant == "inc":
        return _inc(layer, scheme, cc, profile)
    if quant == "fp8":
        return _fp8(scheme, cc)
    if quant == "compressed-tensors":
        return _compressed_tensors(scheme, cc, profile)
    if quant.startswith("modelopt") or quant == "mxfp8":
        return _modelopt(scheme)
    if quant == "quark":
        return _quark(scheme)
    return Method(UNKNOWN, family=UNKNOWN, bits=scheme.bits)


def groups_fit(layer: EngineLayer, group_size: int) -> bool:
    """Whether no group straddles two ranks (marlin_utils.py:306, marlin.py:57)."""
    return group_size == -1 or group_size >= layer.in_full or layer.k % group_size == 0


def marlin_takes(bits: int, group_size: int, zero_points: bool, cc: int, profile: Profile) -> bool:
    """marlin_utils.py:41, :105: types and groups that Marlin was compiled for."""
    types = bits == 4 if zero_points else bits in (4, 8)
    return cc >= 75 and types and group_size in profile.constant("marlin_group_sizes", ())


def _awq(layer: EngineLayer, scheme: Scheme, cc: int, profile: Profile) -> Method:
    """auto_awq.py:300: the kernel-choosing method unless a group straddles ranks, then the plain one."""
    group = scheme.group_size or -1
    zero_points = not scheme.symmetric
    family = "mixed_precision"
    name = "AutoAWQMarlinLinearMethod"
    if not (marlin_takes(scheme.bits, group, zero_points, cc, profile) and groups_fit(layer, group)):
        name, family = "AutoAWQLinearMethod", ""
    return Method(name, "", family, "int4", "", scheme.bits, group, None, zero_points)


def _gptq(scheme: Scheme) -> Method:
    """auto_gptq.py:305: zero points are stored and never used."""
    group = scheme.group_size or -1
    return Method("AutoGPTQLinearMethod", "", "mixed_precision", f"int{scheme.bits}", "", scheme.bits, group)


def _inc(layer: EngineLayer, scheme: Scheme, cc: int, profile: Profile) -> Method:
    """inc_wna16_linear.py:38, inc_fp8_linear.py:15: delegates to the GPTQ, AWQ or fp8 method; widths without
    Marlin go to Humming, which is not known here."""
    if scheme.format == "fp8":
        return _fp8(scheme, cc)._replace(name="INCLinearMethod", scheme="Fp8LinearMethod")
    if scheme.kind != "int" or scheme.bits not in (4, 8) or scheme.format == "compressed_tensors":
        return Method(UNKNOWN, family=UNKNOWN, bits=scheme.bits)
    inner = _awq(layer, scheme, cc, profile) if scheme.format == "awq" else _gptq(scheme)
    return inner._replace(name="INCLinearMethod", scheme=inner.name)


def _fp8_activation(scheme: Scheme, block: tuple[int, int] | None, cc: int) -> str:
    """fp8.py:289: per token where CUTLASS can (8.9 and later), per tensor otherwise."""
    if block is not None:
        return f"fp8_dynamic_{block[0]}"
    if scheme.activation == "static":
        return "fp8_static_tensor"
    return "fp8_dynamic_token" if cc >= 89 else "fp8_dynamic_tensor"


def _fp8(scheme: Scheme, cc: int) -> Method:
    if scheme.bits != 8 or scheme.kind == "int":
        return Method(UNKNOWN, family=UNKNOWN, bits=scheme.bits)
    family = "fp8_block" if scheme.block else "fp8"
    weight = "fp8_block" if scheme.block else "fp8_tensor"
    activation = _fp8_activation(scheme, scheme.block, cc)
    return Method("Fp8LinearMethod", "", family, weight, activation, 8, block=scheme.block)


def _compressed_tensors(scheme: Scheme, cc: int, profile: Profile) -> Method:
    """compressed_tensors.py:760 `_get_scheme_from_parts`, in its order."""
    name = "CompressedTensorsLinearMethod"
    group = scheme.group_size or -1
    if scheme.kind in ("float", "mx") and scheme.bits == 4:
        if scheme.group_size == 16:
            family = "nvfp4" if scheme.activation else "nvfp4_weight_only"
            activation = "nvfp4_dynamic" if scheme.activation else ""
            return Method(name, "CompressedTensorsW4A4Fp4", family, "nvfp4", activation, 4, 16)
        activation = "mxfp4_dynamic" if scheme.activation and scheme.activation_bits == 4 else ""
        return Method(name, "CompressedTensorsW4A4Mxfp4", "mxfp4", "mxfp4", activation, 4, 32)
    if scheme.kind == "mx" and scheme.bits == 8:
        return Method(name, "CompressedTensorsW8A8Mxfp8", "mxfp8", "mxfp8", "mxfp8_dynamic", 8, 32)
    if scheme.kind == "int" and scheme.activation is None:
        weight = f"int{scheme.bits}"
        return Method(
            name,
            "CompressedTensorsWNA16",
            "mixed_precision",
            weight,
            "",
            scheme.bits,
            group,
            None,
            not scheme.symmetric,
        )
    if scheme.kind == "int" and scheme.layout == "pack-quantized" and scheme.activation == "dynamic":
        weight, zeros = f"int{scheme.bits}", not scheme.symmetric
        inner = f"CompressedTensorsWNA{scheme.activation_bits}Int"
        return Method(name, inner, "mixed_precision", weight, "", scheme.bits, group, None, zeros)
    if scheme.kind == "int" and scheme.bits == 8 and scheme.strategy in ("tensor", "channel"):
        return Method(name, "CompressedTensorsW8A8Int8", "int8", f"int8_{scheme.strategy}", "int8", 8)
    if scheme.kind == "float" and scheme.bits == 8:
        weight = "fp8_block" if scheme.block else f"fp8_{scheme.strategy}"
        wide = scheme.activation is None or cc < profile.min_capability("CompressedTensorsW8A8Fp8")
        if wide:
            activation = "fp8_static_tensor" if scheme.activation == "static" else "fp8_dynamic_tensor"
            return Method(
                name, "CompressedTensorsW8A16Fp8", "fp8_weight_only", weight, activation, 8, block=scheme.block
            )
        family = "fp8_block" if scheme.block else "fp8"
        activation = "fp8_static_tensor" if scheme.activation == "static" else "fp8_dynamic_token"
        if scheme.block:
            activation = f"fp8_dynamic_{scheme.block[0]}"
        return Method(name, "CompressedTensorsW8A8Fp8", family, weight, activation, 8, block=scheme.block)
    return Method(UNKNOWN, family=UNKNOWN, bits=scheme.bits)


def _modelopt(scheme: Scheme) -> Method:
    """modelopt.py:2710 `resolve`."""
    name = "ModelOptLinearMethod"
    if scheme.bits == 4:
        family = "nvfp4" if scheme.activation else "nvfp4_weight_only"
        activation = "nvfp4_dynamic" if scheme.activation else ""
        return Method(name, "", family, "nvfp4", activation, 4, scheme.group_size or 16)
    if scheme.kind == "mx":
        return Method(name, "", "mxfp8", "mxfp8", "mxfp8_dynamic", 8, 32)
    if scheme.block:
        return Method(name, "", "fp8_block", "fp8_block", "fp8_dynamic_128", 8, block=scheme.block)
    if scheme.strategy == "channel":
        return Method(name, "", "fp8", "fp8_channel", "fp8_dynamic_token", 8)
    return Method(name, "", "fp8", "fp8_tensor", "fp8_static_tensor", 8)


def _quark(scheme: Scheme) -> Method:
    """quark.py `get_scheme_cls`."""
    name = "QuarkLinearMethod"
    if scheme.kind == "int" and scheme.bits == 8:
        return Method(name, "QuarkW8A8Int8", "int8", f"int8_{scheme.strategy}", "int8", 8)
    if scheme.kind == "int" and scheme.bits == 4:
        group = scheme.group_size or -1
        return Method(name, "QuarkW4A16Int4", "mixed_precision", "int4", "", 4, group, None, not scheme.symmetric)
    if scheme.kind == "float" and scheme.bits == 8:
        static = scheme.activation == "static"
        if scheme.block:
            return Method(
                name, "QuarkW8A8Fp8PerBlock", "fp8_block", "fp8_block", "fp8_dynamic_128", 8, block=scheme.block
            )
        activation = "fp8_static_tensor" if static else "fp8_dynamic_token"
        return Method(name, "QuarkW8A8Fp8", "fp8", f"fp8_{scheme.strategy}", activation, 8)
    if scheme.kind == "float" and scheme.bits == 4 and scheme.group_size == 16:
        return Method(name, "QuarkNVFP4", "nvfp4", "nvfp4", "nvfp4_dynamic", 4, 16)
    if scheme.kind == "mx" and scheme.bits in (4, 8):
        return Method(name, "QuarkOCP_MX", f"mxfp{scheme.bits}", f"mxfp{scheme.bits}", "", scheme.bits, 32)
    return Method(UNKNOWN, family=UNKNOWN, bits=scheme.bits)
