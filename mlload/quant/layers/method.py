"""The three steps of a layer's weights, unquantized and quantized.

N = out_features, K = in_features of this rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mlload.kernels.choice.question import Declined
from mlload.kernels.kernel import LinearKernel
from mlload.quant.spec import Scheme

if TYPE_CHECKING:
    from mlload.quant.layers.linear import ParallelLinear


class StoredTensor(NamedTuple):
    """One of the tensors that stand for a rank's share of a linear: shape and dtype as in the files."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class KernelUse(NamedTuple):
    """What runs a layer. packed: its weights stay as small in memory as they are stored."""

    kernel: str
    provider: str
    packed: bool
    declined: tuple[Declined, ...] = ()


class LinearMethod(Protocol):
    """How one layer keeps and multiplies its weight."""

    use: KernelUse | None

    def create_weights(
        self, layer: ParallelLinear, stored: Mapping[str, StoredTensor], allocate: Callable[..., Tensor]
    ) -> None:
        """Registers one parameter for each stored tensor (by suffix)."""
        ...

    def process_weights_after_loading(self, layer: ParallelLinear) -> None:
        """Repacks once, for the kernel that is chosen."""
        ...

    def apply(self, layer: ParallelLinear, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [..., K] -> x W^T + bias [..., N]."""
        ...


class UnquantizedMethod:
    """The weight in the model's dtype. transposed: stored [K, N]."""

    def __init__(self, dtype: torch.dtype, *, transposed: bool = False) -> None:
        self.dtype = dtype
        self.transposed = transposed
        self.use: KernelUse | None = None

    def create_weights(
        self, layer: ParallelLinear, stored: Mapping[str, StoredTensor], allocate: Callable[..., Tensor]
    ) -> None:
        for suffix, tensor in stored.items():
            layer.add(suffix, nn.Parameter(allocate(tensor.shape, self.dtype), requires_grad=False))

    def process_weights_after_loading(self, layer: ParallelLinear) -> None:
        self.use = KernelUse("linear", "torch", True)

    def apply(self, layer: ParallelLinear, x: Tensor, bias: Tensor | None) -> Tensor:
        weight = layer.stored["weight"]
        return F.linear(x, weight.T if self.transposed else weight, bias)


class QuantizedMethod:
    """Packed tensors as stored until they are loaded, then in the form that the chosen kernel reads."""

    def __init__(self, scheme: Scheme, dtype: torch.dtype, transforms: tuple[str, ...] = ()) -> None:
        self.scheme = scheme
        self.dtype = dtype
        self.transforms = transforms
        self.use: KernelUse | None = None
        self.kernel: LinearKernel | None = None

    def create_weights(
        self, layer: ParallelLinear, stored: Mapping[str, StoredTensor], allocate: Callable[..., Tensor]
    ) -> None:
        for suffix, tensor in stored.items():
            kept = self.dtype if suffix == "bias" else tensor.dtype
            layer.add(suffix, nn.Parameter(allocate(tensor.shape, kept), requires_grad=False))

    def process_weights_after_loading(self, layer: ParallelLinear) -> None:
        from mlload.quant.layers.kernels import prepared

        tensors = {suffix: param.data for suffix, param in layer.stored.items() if suffix != "bias"}
        if "g_idx" in tensors and not self.scheme.act_order:
            # Groups in order: a rank that holds a later run of rows numbers its own groups from 0.
            tensors["g_idx"] = tensors["g_idx"] - tensors["g_idx"].min()
        self.kernel, packed, self.use = prepared(self.scheme, layer.n, layer.k, self.dtype, tensors)
        layer.drop_stored()
        for name, tensor in packed.items():
            layer.register_buffer(f"packed_{name.replace('.', '__')}", tensor, persistent=False)
        layer.packed = packed

    def apply(self, layer: ParallelLinear, x: Tensor, bias: Tensor | None) -> Tensor:
        assert self.kernel is not None, "process_weights_after_loading comes first"
        return self.kernel.apply(x, layer.packed, bias)
