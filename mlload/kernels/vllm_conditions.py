"""Conditions of vLLM's fused kernels for experts, and of Machete. No torch, no vllm: installed is what has a place on
disk.

N, K of this rank; H = hidden size, I = intermediate size of this rank. Read in vLLM 0.33.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlload.kernels import gpu_conditions
from mlload.kernels.conditions import HALVES, YES, Capability
from mlload.kernels.families import family
from mlload.kernels.gpu_conditions import multiple, other, version
from mlload.kernels.kernel import Verdict
from mlload.quant.spec import Scheme

if TYPE_CHECKING:
    from mlload.kernels.experts import ExpertShape

INTEGERS = ("w4a16", "w8a16")


def machete(scheme: Scheme, n: int, k: int, dtype: str, capability: Capability) -> Verdict:
    """machete.py: Hopper alone."""
    if family(scheme) not in INTEGERS:
        return other(scheme, "4 and 8-bit integers without activation quantization")
    refused = _here(dtype)
    if refused is not None:
        return refused
    if capability is not None and capability != (9, 0):
        return Verdict(False, f"made for compute capability 9.0, this GPU has {version(capability)}")
    if scheme.act_order:
        return Verdict(False, "rows out of order")
    if _group(scheme) not in (-1, 64, 128):
        return Verdict(False, f"groups of 64, 128 or one a row, not {_group(scheme)}")
    return _whole_groups(scheme, k) or multiple("N", n, 128) or multiple("K", k, 64) or YES


def marlin_experts(scheme: Scheme | None, shape: ExpertShape, dtype: str, capability: Capability) -> Verdict:
    """experts/marlin_moe.py, with the shapes that need no padding."""
    if scheme is None or family(scheme) not in INTEGERS:
        return _not_these(scheme, "4 and 8-bit integers without activation quantization")
    refused = _here(dtype) or _silu(shape) or _at_least(capability, (7, 5))
    if refused is not None:
        return refused
    if scheme.act_order:
        return Verdict(False, "rows out of order")
    if scheme.bits == 8 and not scheme.symmetric:
        return Verdict(False, "8-bit zero points")
    if _group(scheme) not in (-1, 32, 64, 128):
        return Verdict(False, f"groups of 32, 64, 128 or one a row, not {_group(scheme)}")
    return (
        _whole_groups(scheme, shape.inner)
        or multiple("the hidden size", shape.hidden, 128)
        or multiple("the intermediate size", shape.inner, 64)
        or YES
    )


def triton_experts(scheme: Scheme | None, shape: ExpertShape, dtype: str, capability: Capability) -> Verdict:
    """fused_moe.py: floats, and fp8 with dynamic activations in 128x128 blocks or a scale a row."""
    kind = family(scheme)
    if kind not in ("unquantized", "fp8_block", "fp8_channel", "fp8_tensor"):
        return _not_these(scheme, "floats and fp8")
    refused = _here(dtype) or _silu(shape)
    if refused is not None:
        return refused
    if kind == "unquantized" or scheme is None:
        return YES
    if scheme.activation != "dynamic":
        return Verdict(False, "activations quantized as they come, not with stored scales or not at all")
    if scheme.block not in (None, (128, 128)):
        return Verdict(False, f"blocks of 128x128, not {scheme.block}")
    return _at_least(capability, (8, 9)) or YES


def _here(dtype: str) -> Verdict | None:
    if not gpu_conditions.installed("vllm"):
        return Verdict(False, "vllm is not installed")
    return None if dtype in HALVES else Verdict(False, f"activations of 16 bits, not {dtype}")


def _silu(shape: ExpertShape) -> Verdict | None:
    return None if shape.activation == "silu" else Verdict(False, f"the activation {shape.activation}")


def _at_least(capability: Capability, least: tuple[int, int]) -> Verdict | None:
    if capability is None or capability >= least:
        return None
    return Verdict(False, f"needs compute capability {version(least)}, this GPU has {version(capability)}")


def _whole_groups(scheme: Scheme, k: int) -> Verdict | None:
    group = _group(scheme)
    if group < 0 or k % group == 0:
        return None
    return Verdict(False, f"K must be a multiple of the group: {k} % {group} = {k % group}")


def _group(scheme: Scheme) -> int:
    return scheme.group_size if scheme.strategy == "group" and scheme.group_size else -1


def _not_these(scheme: Scheme | None, wanted: str) -> Verdict:
    return Verdict(False, f"takes {wanted}; these are floats") if scheme is None else other(scheme, wanted)
