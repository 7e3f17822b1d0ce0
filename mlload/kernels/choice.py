"""Which kernel runs a layer on a GPU that need not be there, and why each other one does not.

    choose(layer, scheme, quant, dtype, capability, profile) -> Choice

Orders come from the profile, conditions from `linear_conditions` and `experts_conditions`, under
the engine's own names. Nothing is imported from the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from mlload.checkpoint.finding import Finding, Hint
from mlload.kernels import experts_conditions, linear_conditions
from mlload.kernels.question import Question
from mlload.profiles.layers import EngineLayer
from mlload.profiles.methods import UNKNOWN, capability_number, method_for
from mlload.profiles.profile import Profile
from mlload.quant.spec import Scheme


class Declined(NamedTuple):
    """A candidate that does not run the layer, and why."""

    kernel: str
    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One layer, its kernel, and the others' reasons.

    layers:     the engine's Kind[name]: "QKVParallelLinear[qkv_proj]"
    shape:      (N, K) on one rank; experts (E, S * I, H) with S parts of intermediate size I
    method:     the engine's method class, with the scheme inside it:
                "CompressedTensorsLinearMethod/CompressedTensorsWNA16"
    chosen:     kernel class or backend; None where the method has no choice, or nothing can run it
    provider:   library that the kernel comes from: "vllm", "humming", "triton", "deep_gemm", "torch", "flashinfer"
    declined:   every other candidate in the engine's order
    refusals:   why the layer is not built, () where it is
    known:      False where this project does not know the method
    """

    layers: str
    shape: tuple[int, ...]
    method: str
    chosen: str | None
    provider: str | None
    declined: tuple[Declined, ...] = ()
    refusals: tuple[Finding, ...] = ()
    known: bool = True

    @property
    def label(self) -> str:
        """Method and kernel as vLLM's own objects name them. INC hides the kernel inside its method."""
        if self.chosen is None or self.method.startswith("INCLinearMethod"):
            return self.method.partition("/")[0] if self.method.startswith("INC") else self.method
        return f"{self.method}/{self.chosen}"

    def as_json(self) -> dict[str, Any]:
        return {
            "layers": self.layers,
            "shape": list(self.shape),
            "method": self.method,
            "chosen": self.chosen,
            "provider": self.provider,
            "declined": [{"kernel": kernel, "reason": reason} for kernel, reason in self.declined],
        }


def choose(
    layer: EngineLayer,
    scheme: Scheme | None,
    quant: str | None,
    dtype: str,
    capability: tuple[int, int] | None,
    profile: Profile,
    *,
    model_type: str = "",
    where: str = "",
) -> Choice:
    """The kernel for one layer. quant: the resolved method; model_type: of the language model (a few
    kernels are off for a few of them); where: shown as the place of a refusal."""
    method = method_for(layer, scheme, quant, capability, profile)
    shape = (layer.experts, layer.n, layer.k) if layer.experts else (layer.n, layer.k)
    name = f"{method.name}/{method.scheme}" if method.scheme else method.name
    label = f"{layer.kind}[{layer.name}]"
    if UNKNOWN in (method.name, method.family):
        return Choice(label, shape, method.name, None, None, known=False)
    question = Question(layer, method, capability_number(capability), dtype, profile, model_type)
    place = where or label
    refusals = _scheme_refusals(question, place)
    if not method.family:
        return Choice(label, shape, name, None, None, refusals=refusals)
    why_not = experts_conditions.why_not if layer.experts else linear_conditions.why_not
    order = _experts_order(question) if layer.experts else _linear_order(question)
    if not order:
        return Choice(label, shape, name, None, None, refusals=refusals, known=False)
    answers = [(kernel, why_not(kernel, question)) for kernel in order]
    chosen = next((kernel for kernel, reason in answers if reason is None), None)
    declined = tuple(
        Declined(kernel, reason or f"could run it, {chosen} comes first")
        for kernel, reason in answers
        if kernel != chosen
    )
    if chosen is None:
        refusals += (_none(question, place, declined),)
    elif _channel_experts(question, chosen):
        refusals += (_channel_refusal(question, place, chosen),)
    return Choice(label, shape, name, chosen, provider(chosen) if chosen else None, declined, refusals)


def _linear_order(q: Question) -> tuple[str, ...]:
    order = q.profile.order("linear", q.method.family if q.method.family != "nvfp4_weight_only" else "nvfp4")
    if q.method.family == "nvfp4_weight_only":
        return _weight_only_nvfp4(q, order)
    return _humming_first(q, order)


def _weight_only_nvfp4(q: Question, order: tuple[str, ...]) -> tuple[str, ...]:
    """kernels/linear/__init__.py:1188: FlashInfer on 10.x, Humming where it is preferred, Marlin elsewhere."""
    allowed = q.profile.order("linear", "nvfp4_weight_only")
    order = tuple(kernel for kernel in order if kernel in allowed)
    if q.cc in q.profile.constant("humming_before_marlin", ()):
        return _humming_first(q, order)
    first = "FlashInferCuteDslNvFp4W4A16LinearKernel" if q.cc in (100, 103) else "MarlinNvFp4LinearKernel"
    forced = [kernel for kernel in (first, "MarlinNvFp4LinearKernel") if kernel in order]
    return tuple(dict.fromkeys([*forced, *order]))


def _humming_first(q: Question, order: tuple[str, ...]) -> tuple[str, ...]:
    """utils/humming/priority.py:29: on some capabilities Humming moves directly ahead of Marlin."""
    if q.cc not in q.profile.constant("humming_before_marlin", ()):
        return order
    names = [name.lower() for name in order]
    humming = next((i for i, name in enumerate(names) if "humming" in name), None)
    marlin = next((i for i, name in enumerate(names) if "marlin" in name), None)
    if humming is None or marlin is None or humming < marlin:
        return order
    moved = list(order)
    moved.insert(marlin, moved.pop(humming))
    return tuple(moved)


def _experts_order(q: Question) -> tuple[str, ...]:
    """The oracle's list, moved around as it moves it (oracle/fp8.py:80, unquantized.py:50, mxfp4.py:402)."""
    order = list(q.profile.order("moe", q.method.family))

    def move(backend: str, to: int) -> None:
        if backend in order:
            order.remove(backend)
            order.insert(to if to >= 0 else len(order), backend)

    if q.method.family == "unquantized":
        if q.cc // 10 == 9:
            move("FLASHINFER_TRTLLM", -1)
            move("FLASHINFER_CUTLASS", -1)
        elif q.layer.dp > 1:
            move("FLASHINFER_CUTLASS", -1)
        return tuple(order)
    if q.method.family == "mxfp4_gpt_oss":
        # Without a declared activation format only the 16-bit variants are tried (mxfp4.py:614).
        order = [b for b in order if not b.endswith(("_MXFP8", "_FP8", "_MXFP4_MXFP4"))]
        if q.cc // 10 == 12 and "BATCHED_MARLIN" in order:
            move("TRITON", order.index("BATCHED_MARLIN"))
    if q.method.family == "wna16" or q.method.family.startswith(("nvfp4", "mxfp4", "fp8")):
        order = list(_humming_first(q, tuple(order)))
    whole = q.method.weight == "fp8_block" and q.method.block == (128, 128)
    if q.method.family == "fp8" and q.cc == 90 and whole:
        move("FLASHINFER_CUTLASS" if q.layer.ep > 1 else "TRITON", 0)
    return tuple(order)


PROVIDERS = (
    ("flashinfer", "flashinfer"),
    ("deepgemm", "deep_gemm"),
    ("humming", "humming"),
    ("triton", "triton"),
    ("torch", "torch"),
    ("conch", "conch"),
    ("b12x", "b12x"),
    ("fbgemm", "fbgemm_gpu"),
    ("aiter", "aiter"),
)


def provider(kernel: str) -> str:
    """The library that a kernel comes from; "vllm" for its own compiled operators."""
    lowered = kernel.lower()
    return next((library for part, library in PROVIDERS if part in lowered), "vllm")


def _scheme_refusals(q: Question, where: str) -> tuple[Finding, ...]:
    """compressed_tensors.py:395, quark.py:357: schemes with a least capability of their own."""
    least = q.profile.min_capability(q.method.scheme) if q.method.scheme else 0
    if q.cc >= least:
        return ()
    message = (
        f"{q.method.scheme} needs compute capability {least} ({least // 10}.{least % 10}), "
        f"this GPU has {q.cc} ({q.version})"
    )
    return (Finding("KN003", "error", "starts", where, message, {"min_capability": least, "capability": q.cc}),)


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
