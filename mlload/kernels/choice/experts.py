"""Can this backend run these experts? The conditions of vLLM's fused-MoE backends, by backend name.

Each function answers None (yes) or the reason why not. Read in vLLM 0.33.0's
layers/fused_moe/oracle and fused_moe/experts (`is_supported_config` and what it asks).
"""

from __future__ import annotations

from collections.abc import Callable

from mlload.kernels.choice.question import Question
from mlload.profiles.methods import moe_marlin_fits

Condition = Callable[[Question], str | None]

# Weight keys that Marlin's experts take (experts/marlin_moe.py:580); a block means whole 128x128 ones.
_MARLIN_WEIGHTS = frozenset(
    {"fp8_channel", "fp8_tensor", "mxfp4", "mxfp8", "nvfp4", "int4", "int8", "int4_32", "int4_asym", "int4_32_asym"}
)
_TRITON_WNA16_WEIGHTS = frozenset({"int4", "int4_asym", "int8", "int4_32", "int4_32_asym"})
_TRITON_FP8 = frozenset(
    {
        ("fp8_channel", "fp8_dynamic_token"),
        ("fp8_tensor", "fp8_dynamic_token"),
        ("fp8_tensor", "fp8_static_tensor"),
        ("fp8_tensor", "fp8_dynamic_tensor"),
    }
)
_CUTLASS_FP8 = frozenset(
    {
        ("fp8_channel", "fp8_dynamic_token"),
        ("fp8_tensor", "fp8_dynamic_tensor"),
        ("fp8_tensor", "fp8_static_tensor"),
    }
)
# experts/fused_humming_moe.py:129; "" means 16-bit activations.
_HUMMING = frozenset(
    {
        *((w, "") for w in ("mxfp4", "nvfp4", "mxfp8", "fp8_channel", "fp8_tensor", "int4", "int8", "int8_channel")),
        *((w, "fp8_dynamic_token") for w in ("mxfp4", "nvfp4", "mxfp8", "fp8_channel", "fp8_tensor", "int4", "int8")),
        *((w, "fp8_static_tensor") for w in ("fp8_channel", "fp8_tensor")),
        *((w, "fp8_dynamic_128") for w in ("fp8_channel", "fp8_tensor", "mxfp4")),
        ("int8_channel", "int8_dynamic_token"),
        ("nvfp4", "nvfp4_dynamic"),
        ("mxfp8", "mxfp8_dynamic"),
    }
)
_DEEP_GEMM_ACTIVATIONS = ("silu", "swiglustep", "swigluoai_uninterleave")


def _scheme(q: Question) -> str:
    block = f" {q.method.block[0]}x{q.method.block[1]}" if q.method.block else ""
    return f"{q.method.weight}{block} weights with {q.method.activation or '16-bit'} activations"


def _is_block(q: Question, side: int = 128) -> bool:
    return q.method.weight == "fp8_block" and q.method.block == (side, side)


def _flashinfer(q: Question) -> str | None:
    return "flashinfer is not installed"


def _batched(q: Question) -> str | None:
    return "needs the batched activation format of an all-to-all backend"


def _elsewhere(platform: str) -> Condition:
    return lambda q: f"runs on {platform} only"


def _gated(q: Question) -> str | None:
    return None if q.layer.gated else "takes gated experts only"


def _deep_gemm(q: Question) -> str | None:
    """experts/triton_deep_gemm_moe.py:24: DeepGEMM and Triton both must take it."""
    if q.deep_gemm_excluded and q.profile.constant("deep_gemm_excluded_in_experts", True):
        return f"is turned off for model type {q.model_type!r} on {q.version}"
    if not q.has("deep_gemm"):
        return "deep_gemm is not installed"
    if not q.deep_gemm:
        return f"needs compute capability 9.0, 10.x or 12.x, this GPU has {q.version}"
    if (reason := _gated(q)) is not None:
        return reason
    if q.layer.activation not in _DEEP_GEMM_ACTIVATIONS:
        return f"does not take the activation {q.layer.activation!r}"
    if not _is_block(q) or q.method.activation != "fp8_dynamic_128":
        return f"takes 128x128 blocks with dynamic activations, not {_scheme(q)}"
    return None


def _vllm_cutlass_fp8(q: Question) -> str | None:
    """experts/triton_cutlass_moe.py:19; allowed for compressed-tensors only (oracle/fp8.py:521)."""
    if not q.method.name.startswith("CompressedTensors"):
        return f"is not offered to {q.method.name}"
    if q.cc < 90:
        return f"needs compute capability 9.0, this GPU has {q.version}"
    if (reason := _gated(q)) is not None:
        return reason
    if (q.method.weight, q.method.activation) not in _CUTLASS_FP8:
        return f"does not take {_scheme(q)}"
    return None


def _triton(q: Question) -> str | None:
    """experts/triton_moe.py:67."""
    padded = -(-q.layer.experts_all // 32) * 32
    if padded >= 1024:
        return f"takes fewer than 1024 padded experts, not {padded}"
    weight, activation = q.method.weight, q.method.activation
    if not weight:
        return None
    if weight == "int8_channel":
        return None if q.cc >= 75 else f"int8 needs compute capability 7.5, this GPU has {q.version}"
    least = q.profile.value("fp8_capability", 89)
    if weight.startswith("fp8"):
        if q.cc < least:
            return f"float8 needs compute capability {least // 10}.{least % 10}, this GPU has {q.version}"
        if weight == "fp8_block" and activation == "fp8_dynamic_128":
            return None
        if (weight, activation) in _TRITON_FP8:
            return None
    return f"does not take {_scheme(q)}"


def _marlin(q: Question) -> str | None:
    """experts/marlin_moe.py:566, oracle/int_wna16.py:206."""
    if q.cc < 75:
        return f"needs compute capability 7.5, this GPU has {q.version}"
    if q.method.family == "wna16":
        if q.method.name in ("MoeWNA16Method", "QuarkW4A16Int4MoEMethod"):
            return f"does not take the layout that {q.method.name} stores"
        if not moe_marlin_fits(q.layer, q.method.group_size, q.profile):
            return _marlin_misfit(q)
    if q.method.weight == "fp8_block":
        return None if _is_block(q) else f"takes whole 128x128 blocks, not {_scheme(q)}"
    return None if q.method.weight in _MARLIN_WEIGHTS else f"does not take {_scheme(q)}"


def _marlin_misfit(q: Question) -> str:
    layer, group = q.layer, q.method.group_size
    if layer.k % 128:
        return f"the hidden size must be a multiple of 128: {layer.k} % 128 = {layer.k % 128}"
    if group > 0 and layer.intermediate % group:
        size = layer.intermediate
        return f"the intermediate size per rank must be whole groups: {size} % {group} = {size % group}"
    return f"does not take groups of {group}"


def _humming(q: Question) -> str | None:
    """experts/fused_humming_moe.py:129, :385."""
    if not q.has("humming"):
        return "humming is not installed"
    if q.cc < 75:
        return f"needs compute capability 7.5, this GPU has {q.version}"
    # mxfp4's list asks each backend about the activations that the backend itself uses (oracle/mxfp4.py:465).
    weight, activation = q.method.weight, "" if q.method.weight == "mxfp4" else q.method.activation
    if (weight, activation) in _HUMMING or (_is_block(q) and activation in ("", "fp8_dynamic_128")):
        return None
    if q.method.family == "wna16" and weight not in ("int4_asym", "int8_asym"):
        return None
    return f"does not take {_scheme(q)}"


def _triton_wna16(q: Question) -> str | None:
    """experts/triton_moe.py:656, oracle/int_wna16.py:189."""
    if q.method.name in ("AutoGPTQMoEMethod", "AutoAWQMoEMethod"):
        return f"does not take the biases and layout of {q.method.name}"
    return None if q.method.weight in _TRITON_WNA16_WEIGHTS else f"does not take {_scheme(q)}"


def _wna16_emulation(q: Question) -> str | None:
    if q.method.name == "MoeWNA16Method":
        return f"does not take the layout that {q.method.name} stores"
    return None if q.method.weight.startswith("int4") else f"takes 4-bit weights only, not {_scheme(q)}"


def _vllm_cutlass_fp4(q: Question) -> str | None:
    """experts/cutlass_moe.py:701."""
    if not q.family(10, 11, 12):
        return f"needs compute capability 10.x, 11.x or 12.x, this GPU has {q.version}"
    return None if q.method.activation == "nvfp4_dynamic" else f"does not take {_scheme(q)}"


def _nvfp4_emulation(q: Question) -> str | None:
    if q.layer.bias:
        return "does not take expert biases"
    return None if q.method.activation == "nvfp4_dynamic" else f"does not take {_scheme(q)}"


def _triton_kernels(q: Question) -> str | None:
    """experts/gpt_oss_triton_kernels_moe.py:41."""
    if not q.has("triton_kernels"):
        return "triton_kernels is not installed"
    if not 90 <= q.cc < 130:
        return f"needs compute capability 9.0 to 12.x, this GPU has {q.version}"
    if q.layer.activation != "swigluoai" and not q.method.name.startswith("GptOss"):
        return f"does not take the activation {q.layer.activation!r}"
    return None


def _deep_gemm_mxfp4(q: Question) -> str | None:
    """experts/deep_gemm_moe.py:447."""
    if not q.deep_gemm or not q.family(10, 12):
        return f"needs deep_gemm and compute capability 10.x or 12.x, this GPU has {q.version}"
    if (reason := _gated(q)) is not None:
        return reason
    return None if q.layer.activation in ("silu", "swiglustep", "situ") else f"does not take {q.layer.activation!r}"


def _cutlass_mxfp4(q: Question) -> str | None:
    """experts/cutlass_moe.py:1026."""
    if not q.family(10, 11):
        return f"needs compute capability 10.x or 11.x, this GPU has {q.version}"
    return None if q.method.activation == "mxfp4_dynamic" else f"does not take {_scheme(q)}"


def _deep_gemm_mxfp8(q: Question) -> str | None:
    """experts/deep_gemm_moe.py:139."""
    if not q.deep_gemm or not q.family(10):
        return f"needs deep_gemm and compute capability 10.x, this GPU has {q.version}"
    if (reason := _gated(q)) is not None:
        return reason
    known = q.layer.activation in _DEEP_GEMM_ACTIVATIONS
    return None if known else f"does not take the activation {q.layer.activation!r}"


def _always(q: Question) -> str | None:
    return None


_COMMON: dict[str, Condition] = {
    "AITER": _elsewhere("ROCm"),
    "RDNA3": _elsewhere("RDNA 3"),
    "XPU": _elsewhere("XPU"),
    "CPU": _elsewhere("CPU"),
    "CPU_W8A8": _elsewhere("CPU"),
    "HPC": lambda q: "hpc is not installed",
    "HUMMING": _humming,
    "MARLIN": _marlin,
}

CONDITIONS: dict[str, dict[str, Condition]] = {
    "fp8": {**_COMMON, "DEEPGEMM": _deep_gemm, "VLLM_CUTLASS": _vllm_cutlass_fp8, "TRITON": _triton},
    "int8": {**_COMMON, "TRITON": _triton},
    "unquantized": {**_COMMON, "TRITON": _triton},
    "wna16": {**_COMMON, "TRITON": _triton_wna16, "EMULATION": _wna16_emulation},
    "nvfp4": {**_COMMON, "VLLM_CUTLASS": _vllm_cutlass_fp4, "EMULATION": _nvfp4_emulation},
    "mxfp4_gpt_oss": {**_COMMON, "TRITON": _triton_kernels, "CUTLASS_MXFP4_MXFP4": _cutlass_mxfp4,
                      "EMULATION": lambda q: None if q.has("quark") else "quark is not installed"},
    "mxfp4": {**_COMMON, "DEEPGEMM_MXFP4": _deep_gemm_mxfp4},
    "mxfp4_checkpoint": {**_COMMON, "CUTLASS_MXFP4_MXFP4": _cutlass_mxfp4},
    "mxfp8": {**_COMMON, "DEEPGEMM": _deep_gemm_mxfp8, "AITER_MXFP8": _elsewhere("ROCm"),
              "TRITON_MXFP8": _elsewhere("ROCm"), "EMULATION": _always},
}  # fmt: skip


def why_not(backend: str, question: Question) -> str | None:
    """None where the backend can run the experts; otherwise why not."""
    condition = CONDITIONS.get(question.method.family, {}).get(backend)
    if condition is not None:
        return condition(question)
    if backend.startswith("FLASHINFER"):
        return _flashinfer(question)
    if backend.startswith("BATCHED"):
        return _batched(question)
    if backend.startswith("AITER"):
        return "runs on ROCm only"
    return f"{backend} is not known here"
