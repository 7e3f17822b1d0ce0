"""Which kernel mlload's own executor runs the experts of a layer with, and why not the others.

E = experts of this rank, H = hidden size, I = intermediate size of this rank; gate_up [2I, H] and down [H, I] of each
expert as stored. Router weights multiply what the experts return.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from mlload.checkpoint.finding import MlloadError
from mlload.kernels import gpu_conditions, vllm_conditions
from mlload.kernels.choice.question import Declined
from mlload.kernels.conditions import YES, Capability, readable
from mlload.kernels.families import family
from mlload.kernels.kernel import Verdict
from mlload.quant.spec import Scheme

if TYPE_CHECKING:
    from torch import Tensor

FUSED = ("w4a16", "w8a16", "mxfp4", "nvfp4", "fp8_block", "fp8_channel", "fp8_tensor", "w8a8_int8")
ACTIVATIONS = ("silu", "swiglu_oai")


class ExpertShape(NamedTuple):
    """activation: "silu" (gate in the first I rows of gate_up) or "swiglu_oai" (gate and up alternate, clamped).

    dealt_out: a router's choice may be an expert of another rank (-1)
    """

    experts: int
    hidden: int
    inner: int
    activation: str = "silu"
    limit: float = 7.0
    dealt_out: bool = False


class ExpertsKernel(Protocol):
    name: str
    provider: str

    def prepare(
        self, gate_up: Sequence[Mapping[str, Tensor]], down: Sequence[Mapping[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Stored tensors of each expert by suffix, "bias" among them where there is one -> what `apply` reads."""
        ...

    def apply(self, x: Tensor, packed: Mapping[str, Tensor], weights: Tensor, ids: Tensor) -> Tensor:
        """x [T, H], weights and ids [T, top_k] (-1: an expert of another rank) -> [T, H]."""
        ...


class ChosenExperts(NamedTuple):
    kernel: ExpertsKernel
    provider: str
    declined: tuple[Declined, ...]


def fused(scheme: Scheme | None, shape: ExpertShape, dtype: str, capability: Capability) -> Verdict:
    """Our grouped GEMMs."""
    if scheme is None or family(scheme) == "unquantized":
        return gpu_conditions.ours(dtype, capability) or YES
    if family(scheme) not in FUSED:
        return Verdict(False, f"experts of {scheme.format} {scheme.layout or scheme.strategy} are not among its codes")
    check = gpu_conditions.fp8 if native_fp8(scheme, capability) else gpu_conditions.weight_only
    if family(scheme) == "w8a8_int8":
        check = gpu_conditions.int8
        if scheme.activation == "static":
            return Verdict(False, "each expert has a scale of its own for activations")
    for n, k in ((2 * shape.inner, shape.hidden), (shape.hidden, shape.inner)):
        verdict = check(scheme, n, k, dtype, capability)
        if not verdict.ok:
            return verdict
    return YES


class ExpertsCandidate(NamedTuple):
    """can_implement: (scheme, shape, dtype name, capability) -> verdict; where: "module:class"."""

    name: str
    provider: str
    can_implement: Callable[[Scheme | None, ExpertShape, str, Capability], Verdict]
    where: str


CANDIDATES = (
    ExpertsCandidate(
        "fused_marlin_moe", "vllm", vllm_conditions.marlin_experts, "mlload.kernels.vllm_ops.experts:MarlinExperts"
    ),
    ExpertsCandidate(
        "fused_experts", "vllm", vllm_conditions.triton_experts, "mlload.kernels.vllm_ops.experts:TritonExperts"
    ),
    ExpertsCandidate("fused_moe", "mlload", fused, "mlload.kernels.triton.experts:FusedExperts"),
)


def native_fp8(scheme: Scheme | None, capability: Capability) -> bool:
    """Whether activations are quantized too, for fp8 instructions. Not where each expert has a scale of its own for
    them (static): the weights are unpacked then, and activations keep their 16 bits."""
    if scheme is None or not family(scheme).startswith("fp8") or scheme.activation != "dynamic":
        return False
    return capability is None or capability >= (8, 9)


def select_grouped(
    scheme: Scheme | None, shape: ExpertShape, dtype: Any, device: Any, capability: Capability = None
) -> tuple[ChosenExperts | None, tuple[Declined, ...]]:
    """The kernel that runs all experts of a layer at once on a GPU, vLLM's before ours; none, and who declined."""
    import torch

    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    if capability is None:
        capability = torch.cuda.get_device_capability(device)
    name = str(dtype).removeprefix("torch.")
    declined: list[Declined] = []
    for candidate in CANDIDATES:
        verdict = candidate.can_implement(scheme, shape, name, capability)
        if verdict.ok:
            module, _, made = candidate.where.partition(":")
            native = (native_fp8(scheme, capability),) if candidate.provider == "mlload" else ()
            kernel: ExpertsKernel = getattr(import_module(module), made)(scheme, shape, dtype, *native)
            return ChosenExperts(kernel, candidate.provider, tuple(declined)), ()
        declined.append(Declined(candidate.name, verdict.reason))
    return None, tuple(declined)


def select_experts(
    scheme: Scheme | None,
    shape: ExpertShape,
    dtype: Any,
    device: Any = "cpu",
    capability: tuple[int, int] | None = None,
) -> ChosenExperts:
    """The kernel for a layer's experts (those of this rank), all of one scheme; None: not quantized."""
    import torch

    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    if shape.activation not in ACTIVATIONS:
        raise MlloadError(f"unknown activation of experts {shape.activation!r}; known: {', '.join(ACTIVATIONS)}")
    declined: tuple[Declined, ...] = ()
    if str(device).startswith("cuda"):
        chosen, declined = select_grouped(scheme, shape, dtype, device, capability)
        if chosen is not None:
            return chosen
    if scheme is not None:
        name = str(dtype).removeprefix("torch.")
        verdict = readable(scheme, 2 * shape.inner, shape.hidden, name, capability)
        if not verdict.ok:
            raise MlloadError(f"no kernel runs these experts: {verdict.reason}")
    module = import_module("mlload.kernels.cpu.experts")
    return ChosenExperts(module.ExpertByExpert(scheme, shape, dtype, str(device)), "torch", declined)
