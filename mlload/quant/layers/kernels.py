"""The kernel of a layer: `mlload.kernels`' choice, kept from unpacking the weights for good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from mlload.kernels.kernel import LinearKernel
from mlload.kernels.selection import select
from mlload.quant.layers.method import KernelUse
from mlload.quant.layers.reference import PerProduct
from mlload.quant.spec import Scheme

# Packed tensors may grow by so much (scales widened to float32, padding) and still count as packed.
GROWTH = 1.5


def prepared(
    scheme: Scheme, n: int, k: int, dtype: torch.dtype, tensors: Mapping[str, Tensor]
) -> tuple[LinearKernel, dict[str, Tensor], KernelUse]:
    """The kernel for this rank's [n, k] share, what it reads, and how it is called in reports.

    Raises MlloadError where none can read the scheme. Everything is unpacked or repacked once here, so that files that
    do not match their format fail while loading."""
    device = next(iter(tensors.values())).device
    chosen = select(as_found(scheme, tensors), n, k, dtype, device)
    kernel: LinearKernel = chosen.kernel
    packed = kernel.prepare(tensors)
    if size(packed) > GROWTH * size(tensors):
        kernel = PerProduct(kernel)
        packed = kernel.prepare(tensors)
    use = KernelUse(kernel.name, chosen.provider, size(packed) <= GROWTH * size(tensors), chosen.declined)
    return kernel, packed, use


def as_found(scheme: Scheme, tensors: Mapping[str, Tensor]) -> Scheme:
    """With its rows out of order where the stored g_idx says so and no config does: many kernels never look at it."""
    index = next((tensor for name, tensor in tensors.items() if name.endswith("g_idx")), None)
    if index is None or scheme.act_order or not bool((index[..., 1:] < index[..., :-1]).any()):
        return scheme
    return replace(scheme, act_order=True)


def size(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())
