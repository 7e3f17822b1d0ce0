"""The method of routed experts."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from mlload.profiles.layers import EngineLayer
from mlload.profiles.methods.method import UNKNOWN, Method
from mlload.profiles.profile import Profile

if TYPE_CHECKING:
    from mlload.quant.spec import Scheme


def moe_marlin_fits(layer: EngineLayer, group_size: int, profile: Profile) -> bool:
    """marlin_utils.py:359 with tile padding allowed: only hidden % 128 and whole groups are asked for."""
    whole = group_size <= 0 or layer.intermediate % group_size == 0
    return layer.k % 128 == 0 and whole and group_size in profile.constant("marlin_group_sizes", ())


def refined_block(layer: EngineLayer, block: tuple[int, int]) -> tuple[int, int] | None:
    """The finer square grid that fp8 experts get where whole blocks cannot be cut, or None
    (oracle/fp8.py:292). At least 32 wide; scales are repeated while loading, so numbers stay right."""
    bn, bk = block
    size = layer.intermediate
    if size % bn == 0 and (layer.moe_tp == 1 or size % bk == 0):
        return None
    side = gcd(bn, bk, size, layer.k)
    return (side, side) if side >= 32 else None


def experts_method(layer: EngineLayer, scheme: Scheme | None, quant: str | None, profile: Profile) -> Method:
    """quant: the resolved method."""
    if scheme is None or quant is None:
        return Method("UnquantizedFusedMoEMethod", family="unquantized")
    if quant in ("auto_awq", "auto_gptq", "inc"):
        return _awq_gptq(layer, scheme, quant, profile)
    if quant == "fp8" or (quant == "modelopt_mixed" and scheme.block):
        return _fp8(layer, scheme)
    if quant == "compressed-tensors":
        return _compressed_tensors(scheme)
    if quant.startswith("modelopt") or quant == "mxfp8":
        return _modelopt(scheme, quant)
    if quant == "quark":
        return _quark(scheme)
    if quant == "gpt_oss_mxfp4":
        return Method("GptOssMxfp4MoEMethod", "", "mxfp4_gpt_oss", "mxfp4", "", 4, 32)
    if quant == "mxfp4":
        return Method("Mxfp4MoEMethod", "", "mxfp4", "mxfp4", "", 4, 32)
    return Method(UNKNOWN, family=UNKNOWN, bits=scheme.bits)


def _awq_gptq(layer: EngineLayer, scheme: Scheme, quant: str, profile: Profile) -> Method:
    """auto_awq.py:348, auto_gptq.py:250; AutoRound delegates to them and wants whole tiles (inc_wna16_moe.py:347)."""
    group = scheme.group_size or -1
    weight, zero_points = f"int{scheme.bits}", not scheme.symmetric
    fits = moe_marlin_fits(layer, group, profile)
    if quant == "inc":
        fits = fits and layer.intermediate % max(64, group) == 0 and scheme.bits in (4, 8)
    if not fits:
        weight += "_32" if group == 32 and scheme.bits == 4 else ""
        return Method("MoeWNA16Method", "", "wna16", weight, "", scheme.bits, group, None, zero_points)
    if quant == "auto_awq" or scheme.format == "awq":
        return Method("AutoAWQMoEMethod", "", "wna16", weight, "", scheme.bits, group, None, zero_points)
    return Method("AutoGPTQMoEMethod", "", "wna16", weight, "", scheme.bits, group)


def _fp8(layer: EngineLayer, scheme: Scheme) -> Method:
    """fp8.py:480."""
    if scheme.block:
        fine = refined_block(layer, scheme.block)
        return Method("Fp8MoEMethod", "", "fp8", "fp8_block", "fp8_dynamic_128", 8, block=fine or scheme.block)
    activation = "fp8_static_tensor" if scheme.activation == "static" else "fp8_dynamic_tensor"
    return Method("Fp8MoEMethod", "", "fp8", "fp8_tensor", activation, 8)


def _modelopt(scheme: Scheme, quant: str) -> Method:
    """modelopt.py:481, :840, :1292, :1886."""
    if scheme.bits == 4:
        activation = "nvfp4_dynamic" if scheme.activation else ""
        return Method("ModelOptNvFp4FusedMoE", "", "nvfp4", "nvfp4", activation, 4, scheme.group_size or 16)
    if scheme.kind == "mx":
        return Method("ModelOptMxFp8FusedMoE", "", "mxfp8", "mxfp8", "mxfp8_dynamic", 8, 32)
    if scheme.strategy == "tensor":
        return Method("ModelOptFp8MoEMethod", "", "fp8", "fp8_tensor", "fp8_static_tensor", 8)
    return Method(UNKNOWN, family=UNKNOWN, bits=scheme.bits)


def _quark(scheme: Scheme) -> Method:
    """quark_moe.py:167 `get_moe_method_target`."""
    if scheme.kind == "float" and scheme.bits == 8:
        weight = "fp8_block" if scheme.block else f"fp8_{scheme.strategy}"
        dynamic = {"channel": "fp8_dynamic_token", "block": "fp8_dynamic_128"}.get(
            scheme.strategy, "fp8_dynamic_tensor"
        )
        activation = "fp8_static_tensor" if scheme.activation == "static" else dynamic
        return Method("QuarkW8A8Fp8MoEMethod", "", "fp8", weight, activation, 8, block=scheme.block)
    if scheme.kind == "int" and scheme.bits == 4:
        group, zero_points = scheme.group_size or -1, not scheme.symmetric
        weight = "int4" + ("_32" if group == 32 else "") + ("_asym" if zero_points else "")
        return Method("QuarkW4A16Int4MoEMethod", "", "wna16", weight, "", 4, group, None, zero_points)
    if scheme.kind == "int" and scheme.bits == 8 and scheme.activation != "static":
        token = "int8_dynamic_token" if scheme.strategy == "channel" else "int8_dynamic_tensor"
        return Method("QuarkW8A8Int8MoEMethod", "", "int8", f"int8_{scheme.strategy}", token, 8)
    if scheme.kind == "mx" and scheme.bits == 4:
        activation = "mxfp4_dynamic" if scheme.activation == "dynamic" else ""
        return Method("QuarkOCP_MX_MoEMethod", "", "mxfp4_gpt_oss", "mxfp4", activation, 4, 32)
    return Method(UNKNOWN, family=UNKNOWN, bits=scheme.bits)


def _compressed_tensors(scheme: Scheme) -> Method:
    """compressed_tensors_moe.py:20 `get_moe_method`, in its order."""
    group = scheme.group_size or -1
    if scheme.kind in ("float", "mx") and scheme.bits == 4:
        if scheme.group_size == 16:
            activation = "nvfp4_dynamic" if scheme.activation else ""
            return Method("CompressedTensorsW4A4Nvfp4MoEMethod", "", "nvfp4", "nvfp4", activation, 4, 16)
        return Method("CompressedTensorsW4A4Mxfp4MoEMethod", "", "mxfp4_checkpoint", "mxfp4", "mxfp4_dynamic", 4, 32)
    if scheme.kind == "mx" and scheme.bits == 8:
        return Method("CompressedTensorsW8A8Mxfp8MoEMethod", "", "mxfp8", "mxfp8", "mxfp8_dynamic", 8, 32)
    if scheme.kind == "int" and scheme.activation is None:
        zero_points = not scheme.symmetric
        weight = f"int{scheme.bits}" + ("_32" if group == 32 and scheme.bits == 4 else "")
        weight += "_asym" if zero_points else ""
        name = "CompressedTensorsWNA16MoEMethod"
        return Method(name, "", "wna16", weight, "", scheme.bits, group, None, zero_points)
    if scheme.kind == "int" and scheme.bits == 8 and scheme.strategy == "channel":
        return Method("CompressedTensorsW8A8Int8MoEMethod", "", "int8", "int8_channel", "int8_dynamic_token", 8)
    if scheme.kind == "float" and scheme.bits == 8 and scheme.activation is not None:
        weight = "fp8_block" if scheme.block else f"fp8_{scheme.strategy}"
        activation = "fp8_static_tensor" if scheme.activation == "static" else "fp8_dynamic_token"
        if scheme.block or (scheme.strategy == "tensor" and scheme.activation == "dynamic"):
            activation = "fp8_dynamic_128"
        return Method("CompressedTensorsW8A8Fp8MoEMethod", "", "fp8", weight, activation, 8, block=scheme.block)
    return Method(UNKNOWN, family=UNKNOWN, bits=scheme.bits)
