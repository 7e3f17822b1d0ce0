"""Which kernel mlload's own executor runs a linear with, and why not the others."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from mlload.checkpoint.finding import MlloadError
from mlload.kernels.candidates import CANDIDATES
from mlload.kernels.choice.question import Declined
from mlload.kernels.kernel import Candidate, LinearKernel
from mlload.quant.spec import Scheme


class Chosen(NamedTuple):
    """kernel: made for the linear; provider: "vllm", "torch" or "mlload"; declined: those asked before it."""

    kernel: LinearKernel
    provider: str
    declined: tuple[Declined, ...]


def first(
    scheme: Scheme, n: int, k: int, dtype: Any, device: Any, capability: tuple[int, int] | None = None
) -> tuple[Candidate, tuple[Declined, ...]]:
    """The first candidate that can, and the others' reasons; imports no torch."""
    kind, wanted = str(device).split(":")[0], str(dtype).removeprefix("torch.")
    declined: list[Declined] = []
    for candidate in CANDIDATES:
        if candidate.device != kind:
            continue
        verdict = candidate.can_implement(scheme, n, k, wanted, capability)
        if verdict.ok:
            return candidate, tuple(declined)
        declined.append(Declined(candidate.name, verdict.reason))
    reasons = "; ".join(f"{kernel}: {reason}" for kernel, reason in declined) or f"no kernels for {kind}"
    raise MlloadError(f"no kernel runs a {scheme.format} linear with N {n} and K {k} on {kind}: {reasons}")


def select(
    scheme: Scheme, n: int, k: int, dtype: Any, device: Any = "cpu", capability: tuple[int, int] | None = None
) -> Chosen:
    """The kernel for an [n, k] linear (this rank's share).

    dtype:      of the activations, a torch dtype or its name
    device:     "cpu" or "cuda", or a torch device
    capability: of the GPU; asked of torch where it is left out
    """
    import torch

    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    if capability is None and str(device).startswith("cuda"):
        capability = torch.cuda.get_device_capability(device)
    candidate, declined = first(scheme, n, k, dtype, device, capability)
    module, _, name = candidate.where.partition(":")
    kernel: LinearKernel = getattr(import_module(module), name)(scheme, n, k, dtype)
    return Chosen(kernel, candidate.provider, declined)
