"""The kernel of a layer: `mlload.kernels`' choice, and a packed reference where that would unpack at load."""

from __future__ import annotations

import torch

from mlload.kernels.kernel import LinearKernel
from mlload.kernels.selection import select
from mlload.quant.layers.method import KernelUse
from mlload.quant.layers.reference import PackedReference
from mlload.quant.spec import Scheme


def kernel_for(
    scheme: Scheme, n: int, k: int, dtype: torch.dtype, device: torch.device
) -> tuple[LinearKernel, KernelUse]:
    """The kernel for this rank's [n, k] share. Raises MlloadError where none can read the scheme.

    Weights stay packed: where only a kernel that unpacks them at load is left, `PackedReference` runs instead."""
    chosen = select(scheme, n, k, dtype, device)
    kernel, name, provider = chosen.kernel, chosen.kernel.name, chosen.provider
    if name == "dequantized":
        kernel = PackedReference(scheme, n, k, dtype)
        name, provider = kernel.name, kernel.provider
    return kernel, KernelUse(name, provider, True, chosen.declined)
