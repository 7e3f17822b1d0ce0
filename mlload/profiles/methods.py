"""Which of vLLM's method classes takes a layer, and what that method asks its kernels for.

A method is chosen from the checkpoint's scheme and the layer's shape before any kernel is asked;
it decides which parameters are allocated (`allocation`) and which list of kernels is tried
(`mlload.kernels.choice`). Read in vLLM's layers/quantization; files are named beside each rule.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

from mlload.profiles.layers import EngineLayer
from mlload.profiles.profile import Profile
from mlload.quant.spec import Scheme


class Method(NamedTuple):
    """name:       the method class: "Fp8LinearMethod"
    scheme:     class of the scheme inside it, "" for none: "CompressedTensorsWNA16"
    family:     list of kernels that is tried: linear "mixed_precision", "fp8", "fp8_block", "fp8_weight_only",
                "int8", "nvfp4", "nvfp4_weight_only", "mxfp4", "mxfp8"; experts "fp8", "int8", "wna16", "nvfp4",
                "mxfp4", "mxfp4_gpt_oss", "mxfp8", "unquantized"; "" for methods without a choice;
                "unknown" where this project does not know the method
    weight:     key of the weights: "fp8_tensor", "fp8_channel", "fp8_block", "int4", "int8", "nvfp4", ...
    activation: key of the activations, "" for none: "fp8_static_tensor", "fp8_dynamic_token", "fp8_dynamic_128"
    bits:       of a stored weight
    group_size: along K, -1 = one group
    block:      (bn, bk) of block scales, as the kernels see them (refined grids included)
    zero_points: stored and used
    """

    name: str
    scheme: str = ""
    family: str = ""
    weight: str = ""
    activation: str = ""
    bits: int = 16
    group_size: int = -1
    block: tuple[int, int] | None = None
    zero_points: bool = False


UNKNOWN = "unknown"


def capability_number(capability: tuple[int, int] | None) -> int:
    """(9, 0) -> 90; None is judged as 90."""
    return 90 if capability is None else capability[0] * 10 + capability[1]


def method_for(
    layer: EngineLayer,
    scheme: Scheme | None,
    quant: str | None,
    capability: tuple[int, int] | None,
    profile: Profile,
) -> Method:
    """The method that takes `layer`. quant: the resolved method of the checkpoint ("auto_awq", "fp8", ...)."""
    cc = capability_number(capability)
    if layer.experts:
        return _experts(layer, scheme, quant, cc, profile)
    if scheme is None or quant is None or quant in ("mxfp4", "gpt_oss_mxfp4"):
        return _plain(layer, quant)
    if layer.kind == "VocabParallelEmbedding":
        return Method("UnquantizedEmbeddingMethod")
    if quant == "auto_awq":
        return _awq_linear(layer, scheme, cc, profile)
    if quant == "auto_gptq":
        return _gptq_linear(scheme)
    if quant == "inc":
        return _inc_linear(layer, scheme, cc, profile)
    if quant == "fp8":
        return _fp8_linear(scheme, cc)
    if quant == "compressed-tensors":
        return _compressed_tensors_linear(scheme, cc, profile)
    if quant.startswith("modelopt") or quant == "mxfp8":
        return _modelopt_linear(scheme)
    if quant == "quark":
        return _quark_linear(scheme)
    return Method(UNKNOWN, family=UNKNOWN, bits=scheme.bits)


def _plain(layer: EngineLayer, quant: str | None) -> Method:
    """Layers that the method leaves alone. ModelOpt and INC give the head a linear method
    (modelopt.py:234, inc.py:329), everybody else leaves it an embedding."""
    if layer.kind == "VocabParallelEmbedding":
        return Method("UnquantizedEmbeddingMethod")
    if layer.kind == "ParallelLMHead":
        linear = quant is not None and (quant == "inc" or quant.startswith("modelopt"))
        return Method("UnquantizedLinearMethod" if linear else "UnquantizedEmbeddingMethod")
    return Method("UnquantizedLinearMethod")


def groups_fit(layer: EngineLayer, group_size: int) -> bool:
    """Whether no group straddles two ranks (marlin_utils.py:306, marlin.py:57)."""
    return group_size == -1 or group_size >= layer.in_full or layer.k % group_size == 0


def marlin_takes(bits: int, group_size: int, zero_points: bool, cc: int, profile: Profile) -> bool:
    """marlin_utils.py:41, :105: types and groups that Marlin was compiled for."""
    types = bits == 4 if zero_points else bits in (4, 8)
    return cc >= 75 and types and group_size in profile.constant("marlin_group_sizes", ())


def _awq_linear(layer: EngineLayer, scheme: Scheme, cc: int, profile: Profile) -> Method:
    """auto_awq.py:300: the kernel-choosing method unless a group straddles ranks, then the plain one."""
    group = scheme.group_size or -1
    zero_points = not scheme.symmetric
    family = "mixed_precision"
    name = "AutoAWQMarlinLinearMethod"
    if not (marlin_takes(scheme.bits, group, zero_points, cc, profile) and groups_fit(layer, group)):
        name, family = "AutoAWQLinearMethod", ""
    return Method(name, "", family, "int4", "", scheme.bits, group, None, zero_points)


def _gptq_linear(scheme: Scheme) -> Method:
    """auto_gptq.py:305: zero points are stored and never used."""
    group = scheme.group_size or -1
    return Method("AutoGPTQLinearMethod", "", "mixed_precision", f"int{scheme.bits}", "", scheme.bits, group)


def _inc_linear(layer: EngineLayer, scheme: Scheme, cc: int, profile: Profile) -> Method:
    """inc_wna16_linear.py: delegates to the GPTQ or AWQ method; widths without Marlin go to Humming."""
    if scheme.kind != "int" or scheme.bits not in (4, 8):
        return Method(UNKNOWN, family=UNKNOWN, bits=scheme.bits)
    awq = "awq" in scheme.layout
    inner = _awq_linear(layer, scheme, cc, profile) if awq else _gptq_linear(scheme)
    return inner._replace(name="INCLinearMethod", scheme=inner.name)


def fp8_activation(scheme: Scheme, block: tuple[int, int] | None, cc: int) -> str:
    """fp8.py:289: per token where CUTLASS can (8.9 and later), per tensor otherwise."""
    if block is not None:
        return f"fp8_dynamic_{block[0]}"
    if scheme.activation == "static":
        return "fp8_static_tensor"
    return "fp8_dynamic_token" if cc >= 89 else "fp8_dynamic_tensor"


def _fp8_linear(scheme: Scheme, cc: int) -> Method:
    if scheme.bits != 8 or scheme.kind == "int":
        return Method(UNKNOWN, family=UNKNOWN, bits=scheme.bits)
    family = "fp8_block" if scheme.block else "fp8"
    weight = "fp8_block" if scheme.block else "fp8_tensor"
    activation = fp8_activation(scheme, scheme.block, cc)
    return Method("Fp8LinearMethod", "", family, weight, activation, 8, block=scheme.block)


def _compressed_tensors_linear(scheme: Scheme, cc: int, profile: Profile) -> Method:
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


def _modelopt_linear(scheme: Scheme) -> Method:
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


def _quark_linear(scheme: Scheme) -> Method:
    """quark.py `get_scheme_cls`."""
    name = "QuarkLinearMethod"
    if scheme.kind == "int" and scheme.bits == 8:
        return Method(name, "QuarkW8A8Int8", "int8", f"int8_{scheme.strategy}", "int8", 8)
    if scheme.kind == "int" and scheme.bits == 4:
        group = scheme.group_size or -1
        return Method(name, "QuarkW4A16Int4", "mixed_precision", "int4", "", 4, group, None, not scheme.symmetric)
    if scheme.kind == "float" and scheme.bits == 8:
        static = scheme.activation == "static"
        activation = "fp8_static_tensor" if static else "fp8_dynamic_token"
        return Method(name, "QuarkW8A8Fp8", "fp8", f"fp8_{scheme.strategy}", activation, 8)
    if scheme.kind == "float" and scheme.bits == 4 and scheme.group_size == 16:
        return Method(name, "QuarkNVFP4", "nvfp4", "nvfp4", "nvfp4_dynamic", 4, 16)
    if scheme.kind == "mx" and scheme.bits in (4, 8):
        return Method(name, "QuarkOCP_MX", f"mxfp{scheme.bits}", f"mxfp{scheme.bits}", "", scheme.bits, 32)
    return Method(UNKNOWN, family=UNKNOWN, bits=scheme.bits)


# Experts.
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


def _experts(layer: EngineLayer, scheme: Scheme | None, quant: str | None, cc: int, profile: Profile) -> Method:
    if scheme is None or quant is None:
        return Method("UnquantizedFusedMoEMethod", family="unquantized")
    group = scheme.group_size or -1
    zero_points = not scheme.symmetric
    if quant in ("auto_awq", "auto_gptq"):
        weight = f"int{scheme.bits}"
        if not moe_marlin_fits(layer, group, profile):
            weight += "_32" if group == 32 else ""
            return Method("MoeWNA16Method", "", "wna16", weight, "", scheme.bits, group, None, zero_points)
        if quant == "auto_awq":
            return Method("AutoAWQMoEMethod", "", "wna16", weight, "", scheme.bits, group, None, zero_points)
        return Method("AutoGPTQMoEMethod", "", "wna16", weight, "", scheme.bits, group)
    if quant == "fp8":
        if scheme.block:
            fine = refined_block(layer, scheme.block)
            return Method("Fp8MoEMethod", "", "fp8", "fp8_block", "fp8_dynamic_128", 8, block=fine or scheme.block)
        static = scheme.activation == "static"
        activation = "fp8_static_tensor" if static else "fp8_dynamic_tensor"
        return Method("Fp8MoEMethod", "", "fp8", "fp8_tensor", activation, 8)
    if quant == "compressed-tensors":
        return _compressed_tensors_experts(scheme)
    if quant in ("modelopt", "modelopt_fp4"):
        if scheme.bits == 4:
            activation = "nvfp4_dynamic" if scheme.activation else ""
            return Method("ModelOptNvFp4FusedMoE", "", "nvfp4", "nvfp4", activation, 4, scheme.group_size or 16)
        if scheme.strategy == "tensor":
            return Method("ModelOptFp8MoEMethod", "", "fp8", "fp8_tensor", "fp8_static_tensor", 8)
    if quant == "gpt_oss_mxfp4":
        return Method("GptOssMxfp4MoEMethod", "", "mxfp4_gpt_oss", "mxfp4", "", 4, 32)
    if quant == "mxfp4":
        return Method("Mxfp4MoEMethod", "", "mxfp4", "mxfp4", "", 4, 32)
    return Method(UNKNOWN, family=UNKNOWN, bits=scheme.bits)


def _compressed_tensors_experts(scheme: Scheme) -> Method:
    """compressed_tensors_moe.py:20 `get_moe_method`, in its order."""
    group = scheme.group_size or -1
    if scheme.kind in ("float", "mx") and scheme.bits == 4:
        if scheme.group_size == 16:
            activation = "nvfp4_dynamic" if scheme.activation else ""
            return Method("CompressedTensorsW4A4Nvfp4MoEMethod", "", "nvfp4", "nvfp4", activation, 4, 16)
        return Method("CompressedTensorsW4A4Mxfp4MoEMethod", "", "mxfp4", "mxfp4", "", 4, 32)
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
