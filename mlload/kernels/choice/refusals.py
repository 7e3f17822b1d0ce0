"""Layers that no kernel can run, or whose scheme the GPU is too old for, as findings."""

from __future__ import annotations

from mlload.checkpoint.finding import Finding, Hint
from mlload.kernels.choice.question import Declined, Question


def of_scheme(q: Question, where: str) -> tuple[Finding, ...]:
    """compressed_tensors.py:395, quark.py:357: schemes with a least capability of their own."""
    # The class for block scales asks the other one for its capability (quark_w8a8_fp8.py:239).
    least = q.profile.min_capability(q.method.scheme.removesuffix("PerBlock"))
    if q.cc >= least:
        return ()
    message = (
        f"{q.method.scheme} needs compute capability {least} ({least // 10}.{least % 10}), "
        f"this GPU has {q.cc} ({q.version})"
    )
    return (Finding("KN003", "error", "starts", where, message, {"min_capability": least, "capability": q.cc}),)


def of_choice(q: Question, where: str, chosen: str | None, declined: tuple[Declined, ...]) -> tuple[Finding, ...]:
    """Nothing can run the layer, or what comes first cannot run it after all."""
    if chosen is None:
        return (_none(q, where, declined),)
    if _channel_experts(q, chosen):
        return (_channel_refusal(q, where, chosen),)
    return (_int8_refusal(q, where),) if chosen == "CutlassInt8ScaledMMLinearKernel" and q.cc >= 100 else ()


def on_cpu(q: Question, where: str, chosen: str | None, declined: tuple[Declined, ...]) -> tuple[Finding, ...]:
    """Nothing can run the layer on a CPU."""
    if chosen is not None:
        return ()
    reasons = "; ".join(f"{kernel}: {reason}" for kernel, reason in declined)
    message = f"no kernel runs this layer (N {q.layer.n}, K {q.layer.k} per rank) on this CPU: {reasons}"
    return (Finding("KN001", "error", "starts", where, message, {"n": q.layer.n, "k": q.layer.k}),)


def _int8_refusal(q: Question, where: str) -> Finding:
    """The compiled operator says so when it is called; the choice does not ask it
    (scaled_mm/cutlass.py:43; "Int8 not supported on SM" in the release's library)."""
    message = f"the layer is built, but {q.version} has no int8 kernel in CUTLASS and the first forward pass fails"
    hint = Hint("quantize to float8 instead", needs="original weights")
    return Finding("KN005", "error", "right", where, message, {"capability": q.cc}, (hint,))


def _none(q: Question, where: str, declined: tuple[Declined, ...]) -> Finding:
    reasons = "; ".join(f"{kernel}: {reason}" for kernel, reason in declined)
    numbers = {"capability": q.cc, "n": q.layer.n, "k": q.layer.k}
    if q.layer.experts:
        size = q.layer.intermediate
        message = f"no backend runs these experts (intermediate size per rank {size}) on {q.version}: {reasons}"
        hints = () if q.layer.ep > 1 else (Hint("keep experts whole", "--enable-expert-parallel"),)
        return Finding("KN002", "error", "starts", where, message, {**numbers, "intermediate": size}, hints)
    message = f"no kernel runs this layer (N {q.layer.n}, K {q.layer.k} per rank) on {q.version}: {reasons}"
    return Finding("KN001", "error", "starts", where, message, numbers)


def _channel_experts(q: Question, chosen: str) -> bool:
    """compressed_tensors_moe_wna16.py:120."""
    per_channel = q.method.name == "CompressedTensorsWNA16MoEMethod" and q.method.group_size == -1
    return per_channel and "MARLIN" not in chosen


def _channel_refusal(q: Question, where: str, chosen: str) -> Finding:
    message = f"experts with one scale a channel run on Marlin only, and on {q.version} {chosen} comes first"
    return Finding("KN004", "error", "starts", where, message, {"capability": q.cc})
