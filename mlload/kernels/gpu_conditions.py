"""Conditions of the candidates for a CUDA GPU. No torch, no triton, no vllm: installed is what has a place on disk.

N = out_features, K = in_features of this rank. Compute capability as (major, minor).
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

from mlload.kernels.conditions import HALVES, YES, Capability
from mlload.kernels.families import family
from mlload.kernels.kernel import Verdict
from mlload.quant.spec import Scheme

WEIGHT_ONLY = ("w4a16", "w8a16", "fp8_tensor", "fp8_channel", "fp8_block", "mxfp4", "nvfp4")
FP8 = ("fp8_tensor", "fp8_channel", "fp8_block")
# Generations whose machine code is compiled and looked at (benchmarks/results/compiled.txt).
MAJORS = (8, 9, 10)


@cache
def installed(package: str) -> bool:
    return find_spec(package) is not None


def weight_only(scheme: Scheme, n: int, k: int, dtype: str, capability: Capability) -> Verdict:
    """Our GEMM on packed weights and 16-bit activations."""
    kind = family(scheme)
    if kind not in WEIGHT_ONLY:
        return other(scheme, "4 and 8-bit weights that it can unpack in registers")
    return ours(dtype, capability) or _group(scheme, k) or _edges(scheme, k) or YES


def fp8(scheme: Scheme, n: int, k: int, dtype: str, capability: Capability) -> Verdict:
    """Our fp8 GEMM with quantized activations."""
    if family(scheme) not in FP8:
        return other(scheme, "fp8 weights with tensor, channel or block scales")
    if scheme.activation is None:
        return Verdict(False, "activations are not quantized in this scheme")
    if scheme.block not in (None, (128, 128)):
        return Verdict(False, f"blocks of 128x128, not {scheme.block}")
    if capability is not None and capability < (8, 9):
        return Verdict(False, f"fp8 instructions need compute capability 8.9, this GPU has {version(capability)}")
    return ours(dtype, capability) or multiple("K", k, 16) or YES


def scaled_mm(scheme: Scheme, n: int, k: int, dtype: str, capability: Capability) -> Verdict:
    """torch._scaled_mm with a scale a row and a channel, behind our quantize kernel."""
    if family(scheme) not in ("fp8_tensor", "fp8_channel"):
        return other(scheme, "fp8 weights with tensor or channel scales")
    if scheme.activation is None:
        return Verdict(False, "activations are not quantized in this scheme")
    if capability is not None and capability < (9, 0):
        return Verdict(False, f"scales a row need compute capability 9.0, this GPU has {version(capability)}")
    if dtype != "bfloat16":
        return Verdict(False, f"with scales a row it returns bfloat16 only, not {dtype}")
    return ours(dtype, capability) or multiple("K", k, 16) or multiple("N", n, 16) or YES


def int8(scheme: Scheme, n: int, k: int, dtype: str, capability: Capability) -> Verdict:
    """torch._int_mm behind our quantize kernel, our GEMM where it has few rows."""
    if family(scheme) != "w8a8_int8":
        return other(scheme, "8-bit integers with 8-bit activations")
    if not scheme.option("input_symmetric", True):
        return Verdict(False, "activations with zero points")
    return ours(dtype, capability) or multiple("K", k, 16) or YES


def vllm_marlin(scheme: Scheme, n: int, k: int, dtype: str, capability: Capability) -> Verdict:
    """vLLM's Marlin for 4 and 8-bit integers."""
    if family(scheme) not in ("w4a16", "w8a16"):
        return other(scheme, "4 and 8-bit integers without activation quantization")
    if not installed("vllm"):
        return Verdict(False, "vllm is not installed")
    if dtype not in HALVES:
        return Verdict(False, f"activations of 16 bits, not {dtype}")
    if capability is not None and capability < (7, 5):
        return Verdict(False, f"needs compute capability 7.5, this GPU has {version(capability)}")
    if scheme.act_order:
        return Verdict(False, "rows out of order")
    if scheme.bits == 8 and not scheme.symmetric:
        return Verdict(False, "8-bit zero points")
    group = scheme.group_size if scheme.strategy == "group" and scheme.group_size else -1
    if group not in (-1, 32, 64, 128):
        return Verdict(False, f"groups of 32, 64, 128 or one a row, not {group}")
    if group > 0 and k % group:
        return Verdict(False, f"K must be a multiple of the group: {k} % {group} = {k % group}")
    return multiple("N", n, 64) or multiple("K", k, 128) or YES


def vllm_cutlass_fp8(scheme: Scheme, n: int, k: int, dtype: str, capability: Capability) -> Verdict:
    """vLLM's CUTLASS GEMM for tensor and channel scales."""
    if family(scheme) not in ("fp8_tensor", "fp8_channel"):
        return other(scheme, "fp8 weights with tensor or channel scales")
    if scheme.activation is None:
        return Verdict(False, "activations are not quantized in this scheme")
    if not installed("vllm"):
        return Verdict(False, "vllm is not installed")
    if dtype not in HALVES:
        return Verdict(False, f"activations of 16 bits, not {dtype}")
    if capability is not None and capability < (8, 9):
        return Verdict(False, f"fp8 instructions need compute capability 8.9, this GPU has {version(capability)}")
    return multiple("N", n, 16) or multiple("K", k, 16) or YES


def ours(dtype: str, capability: Capability) -> Verdict | None:
    """What all of our kernels need."""
    if not installed("triton"):
        return Verdict(False, "triton is not installed")
    if dtype not in HALVES:
        return Verdict(False, f"activations of 16 bits, not {dtype}")
    if capability is not None and capability[0] not in MAJORS:
        tried = "8.x, 9.x or 10.x"
        return Verdict(False, f"compiled for compute capability {tried}, this GPU has {version(capability)}")
    return None


def _group(scheme: Scheme, k: int) -> Verdict | None:
    size = scheme.group_size if scheme.strategy in ("group", "tensor_group", "block") else None
    if size is None or size < 0 or size >= k or size in (16, 32, 64) or size % 128 == 0:
        return None
    return Verdict(False, f"groups of 16, 32, 64 or a multiple of 128, not {size}")


def _edges(scheme: Scheme, k: int) -> Verdict | None:
    """Formats that pad nothing themselves."""
    if scheme.bits == 4 and scheme.kind in ("mx", "float"):
        return multiple("K", k, scheme.group_size or 32)
    if scheme.block is not None and scheme.block[1] % 128:
        return Verdict(False, f"blocks of a multiple of 128 along K, not {scheme.block}")
    return None


def multiple(letter: str, length: int, of: int) -> Verdict | None:
    if length % of == 0:
        return None
    return Verdict(False, f"{letter} per rank must be a multiple of {of}: {length} % {of} = {length % of}")


def version(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def other(scheme: Scheme, wanted: str) -> Verdict:
    return Verdict(False, f"takes {wanted}; this is {scheme.format} {scheme.layout or scheme.strategy}".rstrip())
