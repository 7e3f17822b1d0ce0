"""Conditions of the candidates in `kernels.candidates`. No torch.

N = out_features, K = in_features of this rank. Compute capability as (major, minor).
"""

from __future__ import annotations

from mlload.kernels.families import family
from mlload.kernels.kernel import Verdict
from mlload.quant.spec import Scheme

Capability = tuple[int, int] | None

HALVES = ("float16", "bfloat16")
YES = Verdict(True)


def readable(scheme: Scheme, n: int, k: int, dtype: str, capability: Capability) -> Verdict:
    """The dequantizing reference: whatever the format's reader reads."""
    from mlload.quant.formats.facts import kernel_only

    if kernel_only(scheme):
        return Verdict(False, f"the layout {scheme.layout!r} is shuffled for one kernel and cannot be read")
    return YES


def int4pack(scheme: Scheme, n: int, k: int, dtype: str, capability: Capability) -> Verdict:
    """torch's _weight_int4pack_mm_for_cpu; with other activations than bf16 it is slower than the reference."""
    if family(scheme) != "w4a16":
        return _no_family(scheme, "4-bit integers without activation quantization")
    group = _group(scheme, k)
    if dtype != "bfloat16":
        return Verdict(False, f"its fast path takes bfloat16 activations, not {dtype}")
    if group not in (32, 64, 128, 256):
        return Verdict(False, f"groups of 32, 64, 128 or 256, not {group}")
    if k % group or n % 16:
        return Verdict(False, f"N must be a multiple of 16 and K of the group: {n} % 16 = {n % 16}, {k} % {group}")
    if scheme.act_order:
        return Verdict(False, "rows out of order may not fill their groups on every rank")
    return YES


def int8pack(scheme: Scheme, n: int, k: int, dtype: str, capability: Capability) -> Verdict:
    """torch's _weight_int8pack_mm: one scale a row, no zero points."""
    if family(scheme) != "w8a16":
        return _no_family(scheme, "8-bit integers without activation quantization")
    if dtype != "bfloat16":
        return Verdict(False, f"its fast path takes bfloat16 activations, not {dtype}")
    if _group(scheme, k) != k or not scheme.symmetric:
        return Verdict(False, "one symmetric scale a row only")
    return YES


def int8_dynamic_cpu(scheme: Scheme, n: int, k: int, dtype: str, capability: Capability) -> Verdict:
    """torch._int_mm on quantized activations."""
    if family(scheme) != "w8a8_int8":
        return _no_family(scheme, "8-bit integers with 8-bit activations")
    return YES


def fp8_cpu(scheme: Scheme, n: int, k: int, dtype: str, capability: Capability) -> Verdict:
    if family(scheme) not in ("fp8_tensor", "fp8_channel", "fp8_block"):
        return _no_family(scheme, "fp8 weights with tensor, channel or block scales")
    return YES


def _group(scheme: Scheme, k: int) -> int:
    size = scheme.group_size
    return k if size is None or size < 0 else size


def _no_family(scheme: Scheme, wanted: str) -> Verdict:
    return Verdict(False, f"takes {wanted}; this is {scheme.format} {scheme.layout or scheme.strategy}".rstrip())
