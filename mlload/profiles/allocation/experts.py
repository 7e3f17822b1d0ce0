"""Elements by dtype of a routed-experts layer's parameters, method by method.

Letters: E experts on this rank, H hidden size, I intermediate size of one expert on this rank, S = 2
for gate and up, 1 where there is no gate. w13 is [E, S*I, H] and w2 [E, H, I].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlload.profiles.allocation.linear import Elements, ceil_div
from mlload.profiles.layers import EngineLayer
from mlload.profiles.methods import Method, capability_number
from mlload.profiles.profile import Profile

if TYPE_CHECKING:
    from mlload.quant.spec import Scheme


def experts_elements(
    method: Method,
    layer: EngineLayer,
    dtype: str,
    scheme: Scheme | None,
    capability: tuple[int, int] | None,
    profile: Profile,
) -> Elements:
    """(dtype, elements) of everything that the experts hold on one rank."""
    e, h, i, s = layer.experts, layer.k, layer.intermediate, len(layer.parts)
    if method.family in ("mxfp4_gpt_oss", "mxfp4"):
        h, i = mxfp4_sizes(h, i, mxfp4_backend(method, layer, capability, profile))
    weights = e * (s * i * h + h * i)
    # Biases of experts: GPTQ has them always, AWQ never (auto_gptq.py:571).
    has_bias = layer.bias > 0 and method.name != "AutoAWQMoEMethod"
    if method.name == "AutoGPTQMoEMethod":
        has_bias = True
    elif method.name in ("MoeWNA16Method", "QuarkW4A16Int4MoEMethod"):
        has_bias = False
    biases = e * (s * i + h) if has_bias else 0
    bias = [(_bias_dtype(method, dtype), biases)]
    if method.family == "unquantized":
        return [(dtype, weights), *bias]
    if method.name in ("AutoAWQMoEMethod", "AutoGPTQMoEMethod"):
        return _marlin_layout(method, layer, dtype) + bias
    if method.name in ("MoeWNA16Method", "QuarkW4A16Int4MoEMethod"):
        return _moe_wna16(method, layer, dtype)
    if method.family == "wna16":
        return _packed(method, layer, dtype) + bias
    if method.family == "fp8":
        return [("F8_E4M3", weights), ("F32", _fp8_scales(method, layer, scheme)), *bias]
    if method.family == "int8":
        scales = e * (s * i + h) if method.weight == "int8_channel" else e * (s + 1)
        # Quark keeps zero points of weights and inputs (quark_moe.py:1175).
        zeros = scales + e * (s + 1) if method.name.startswith("Quark") else 0
        return [("I8", weights + zeros), ("F32", scales), *bias]
    if method.family == "mxfp8":
        return [("F8_E4M3", weights), ("U8", e * (s * i * (h // 32) + h * (i // 32))), *bias]
    if method.family == "nvfp4":
        groups = e * (s * i * (h // method.group_size) + h * (i // method.group_size))
        packed = e * (s * i * (h // 2) + h * (i // 2))
        return [("U8", packed), ("F8_E4M3", groups), ("F32", 2 * e * (s + 1)), *bias]
    packed = e * (s * i * (h // 2) + h * (i // 2))
    return [("U8", packed + e * (s * i * (h // 32) + h * (i // 32))), *bias]


def _bias_dtype(method: Method, dtype: str) -> str:
    """gpt-oss keeps bfloat16 biases whatever the model runs in, Quark float32 ones."""
    if method.name.startswith("Quark"):
        return "F32"
    return "BF16" if method.family == "mxfp4_gpt_oss" else dtype


def _marlin_layout(method: Method, layer: EngineLayer, dtype: str) -> Elements:
    """auto_awq.py:533, auto_gptq.py:497. AWQ packs along N, GPTQ along K."""
    e, h, i, s = layer.experts, layer.k, layer.intermediate, len(layer.parts)
    pack, group = 32 // method.bits, method.group_size
    groups13, groups2 = (1, 1) if group == -1 else (h // group, i // group)
    if method.name == "AutoAWQMoEMethod":
        groups13, groups2 = h // group, i // group
        words = h * (s * i // pack) + i * (h // pack)
    else:
        words = h // pack * (s * i) + i // pack * h
    zeros = groups13 * (s * i // pack) + groups2 * (h // pack)
    return [("I32", e * (words + zeros)), (dtype, e * (groups13 * s * i + groups2 * h))]


def halved_group(group: int, h: int, i: int) -> int:
    """The group that divides both sizes, by halving (moe_wna16.py:281); below 32 vLLM refuses it."""
    while group > 0 and (i % group or h % group):
        group //= 2
    return group


def _moe_wna16(method: Method, layer: EngineLayer, dtype: str) -> Elements:
    """moe_wna16.py:264: bytes, not words; scales (and AWQ's zero points) repeated for the halved group."""
    e, h, i, s = layer.experts, layer.k, layer.intermediate, len(layer.parts)
    pack = 8 // method.bits
    group = max(halved_group(method.group_size, h, i), 1)
    has_zeros = method.zero_points or method.name == "QuarkW4A16Int4MoEMethod"
    zeros = (s * i // pack) * (h // group) + (h // pack) * (i // group) if has_zeros else 0
    return [
        ("U8", e * (s * i * (h // pack) + h * (i // pack))),
        (dtype, e * (s * i * (h // group) + h * (i // group))),
        ("U8", e * zeros),
    ]


def _packed(method: Method, layer: EngineLayer, dtype: str) -> Elements:
    """compressed_tensors_moe_wna16.py:130: words along K; two shapes a tensor, in the model's dtype."""
    e, h, i, s = layer.experts, layer.k, layer.intermediate, len(layer.parts)
    group = method.group_size
    groups13, groups2 = (1, 1) if group == -1 else (h // group, i // group)
    words = s * i * (h * method.bits // 32) + h * (i * method.bits // 32)
    zeros = 0
    if method.zero_points:
        zeros = (s * i * method.bits // 32) * groups13 + (h * method.bits // 32) * groups2
    return [("I32", e * (words + zeros)), (dtype, e * (s * i * groups13 + h * groups2)), (dtype, 2 * e * 2)]


def _fp8_scales(method: Method, layer: EngineLayer, scheme: Scheme | None) -> int:
    """fp8.py:618, compressed_tensors_moe_w8a8_fp8.py:150, modelopt.py:553."""
    e, h, i, s = layer.experts, layer.k, layer.intermediate, len(layer.parts)
    if method.block:
        bn, bk = method.block
        return e * (s * ceil_div(i, bn) * ceil_div(h, bk) + ceil_div(h, bn) * ceil_div(i, bk))
    scales = e * (s * i + h) if method.weight == "fp8_channel" else e * (s + 1)
    static = scheme is not None and scheme.activation == "static"
    return scales + (2 * e if static else 0)


def mxfp4_backend(method: Method, layer: EngineLayer, capability: tuple[int, int] | None, profile: Profile) -> str:
    """The backend that rounds mxfp4 experts up, where the FlashInfer ones are absent (oracle/mxfp4.py:402, :438)."""
    cc = capability_number(capability)
    humming = cc in profile.constant("humming_before_marlin", ()) and profile.assumed.get("humming")
    weight_only = "HUMMING" if humming else "MARLIN"
    if method.family == "mxfp4":
        native = profile.assumed.get("deep_gemm") and cc // 10 in (10, 12)
        return "DEEPGEMM_MXFP4" if native else weight_only
    if method.activation == "mxfp4_dynamic" and cc // 10 in (10, 11):
        return "CUTLASS_MXFP4_MXFP4"
    # The Triton kernels know one activation; consumer Blackwell prefers Marlin (oracle/mxfp4.py:426).
    swiglu = layer.activation == "swigluoai" or method.name.startswith("GptOss")
    triton = swiglu and profile.assumed.get("triton_kernels") and 90 <= cc < 130 and cc // 10 != 12
    return "TRITON" if triton else weight_only


def mxfp4_sizes(h: int, i: int, backend: str) -> tuple[int, int]:
    """Hidden and intermediate size as allocated (oracle/mxfp4.py:837)."""

    def up(value: int, to: int) -> int:
        return ceil_div(value, to) * to

    if backend in ("DEEPGEMM_MXFP4", "CUTLASS_MXFP4_MXFP4"):
        return up(h, 128), up(i, 128)
    if backend == "MARLIN":
        return up(h, 256), up(i, 128)
    return h, up(i, 64)
