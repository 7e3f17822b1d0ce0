"""What a kernel of a linear is: made for one scheme and shape, given stored tensors once, then applied.

N = out_features, K = in_features of this rank, M = rows of activations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mlload.quant.spec import Scheme

if TYPE_CHECKING:
    from torch import Tensor


class LinearKernel(Protocol):
    """One linear's arithmetic.

    name:     of the kernel, "w4a16"
    provider: library that the arithmetic comes from: "vllm", "torch", "mlload"
    """

    name: str
    provider: str

    def prepare(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Stored tensors by suffix, as `quant.formats.spec` names them (the bias apart) -> what `apply` reads.

        Repacks once and keeps the device. Raises MlloadError where the tensors are not the scheme's."""
        ...

    def apply(self, x: Tensor, packed: Mapping[str, Tensor], bias: Tensor | None = None) -> Tensor:
        """x [..., K] in a float dtype -> x W^T + bias [..., N], same dtype."""
        ...


class Verdict(NamedTuple):
    """Whether a kernel can run a linear; why not, else ""."""

    ok: bool
    reason: str = ""


# (scheme, N, K, dtype name, compute capability or None without a GPU) -> verdict; knows no torch.
Condition = Callable[[Scheme, int, int, str, tuple[int, int] | None], Verdict]


class Candidate(NamedTuple):
    """One row of the ordered table.

    device:        "cuda" or "cpu"
    can_implement: asked before anything is imported
    where:         "module:Class" of a LinearKernel, called with (scheme, n, k, dtype)
    """

    name: str
    provider: str
    device: str
    can_implement: Condition
    where: str
