"""Which kernel runs a layer on a GPU that need not be there, and why each other one does not.

    choose(layer, scheme, quant, dtype, capability, profile) -> Choice

Orders come from the profile (`order`), conditions from `linear` and `experts`, under the engine's
own names. Nothing is imported from the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlload.checkpoint.finding import Finding
from mlload.kernels.choice import cpu, experts, linear, refusals
from mlload.kernels.choice.order import experts_order, linear_order
from mlload.kernels.choice.question import Declined, Question
from mlload.profiles.layers import EngineLayer
from mlload.profiles.methods import UNKNOWN, capability_number, method_for
from mlload.profiles.profile import Profile
from mlload.quant.spec import Scheme


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
    platform: str = "cuda",
) -> Choice:
    """The kernel for one layer.

    quant:      the resolved method ("auto_awq", "fp8", ...), None for none
    model_type: of the language model; a few kernels are off for a few of them
    where:      shown as the place of a refusal
    platform:   "cuda", or "cpu" for dense layers; on others the choice is not known here
    """
    method = method_for(layer, scheme, quant, capability, profile)
    shape = (layer.experts, layer.n, layer.k) if layer.experts else (layer.n, layer.k)
    name = f"{method.name}/{method.scheme}" if method.scheme else method.name
    label = f"{layer.kind}[{layer.name}]"
    known = platform == "cuda" or (platform == "cpu" and not layer.experts)
    if UNKNOWN in (method.name, method.family) or not known:
        return Choice(label, shape, method.name, None, None, known=False)
    question = Question(layer, method, capability_number(capability), dtype, profile, model_type)
    place = where or label
    refused = refusals.of_scheme(question, place)
    if not method.family:
        return Choice(label, shape, name, None, None, refusals=refused)
    why_not: Callable[[str, Question], str | None]
    if platform == "cpu":
        why_not, order = cpu.why_not, profile.order("linear", method.family, platform)
    else:
        why_not = experts.why_not if layer.experts else linear.why_not
        order = experts_order(question) if layer.experts else linear_order(question)
    if not order:
        return Choice(label, shape, name, None, None, refusals=refused, known=False)
    answers = [(kernel, why_not(kernel, question)) for kernel in order]
    chosen = next((kernel for kernel, reason in answers if reason is None), None)
    declined = tuple(
        Declined(kernel, reason or f"could run it, {chosen} comes first")
        for kernel, reason in answers
        if kernel != chosen
    )
    if platform == "cpu":
        refused += refusals.on_cpu(question, place, chosen, declined)
    else:
        refused += refusals.of_choice(question, place, chosen, declined)
    return Choice(label, shape, name, chosen, provider(chosen) if chosen else None, declined, refused)


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
