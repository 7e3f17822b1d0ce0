"""Kernels: who can run a quantized linear, and our own that do.

`select(scheme, n, k, dtype, device, capability)` and `select_experts` pick what this process runs; `choice` tells what
an engine would pick. Nothing here imports torch or triton until a kernel is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlload.kernels.experts import ExpertShape, select_experts
    from mlload.kernels.kernel import LinearKernel
    from mlload.kernels.selection import Chosen, select

__all__ = ["Chosen", "ExpertShape", "LinearKernel", "select", "select_experts"]


def __getattr__(name: str) -> Any:
    if name == "LinearKernel":
        from mlload.kernels import kernel

        return kernel.LinearKernel
    if name in ("ExpertShape", "select_experts"):
        from mlload.kernels import experts

        return getattr(experts, name)
    if name in ("Chosen", "select"):
        from mlload.kernels import selection

        return getattr(selection, name)
    raise AttributeError(name)
