"""A rank's share of a linear: column, row, replicated, or the rows of a head.

N = out_features, K = in_features of this rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from mlload.plan.params import Style
from mlload.quant.layers.group import ALONE, Group
from mlload.quant.layers.method import LinearMethod, StoredTensor


class ParallelLinear(nn.Module):
    """style: "column": N is divided, outputs stay apart; "row": K is divided, outputs are summed over the ranks, and
    the bias (whole on every rank) is added once; "replicated": whole; "vocab": rows divided, outputs joined.

    stored: parameters by the suffix of their tensor; empty once a quantized layer is repacked
    packed: what its kernel reads
    """

    def __init__(self, path: str, n: int, k: int, style: Style, method: LinearMethod, group: Group = ALONE) -> None:
        super().__init__()
        self.path = path
        self.n, self.k = n, k
        self.style = style
        self.method = method
        self.group = group if style != "replicated" else ALONE
        self.stored: dict[str, nn.Parameter] = {}
        self.packed: Mapping[str, Tensor] = {}

    # What code that looks at an nn.Linear asks for.
    @property
    def in_features(self) -> int:
        return self.k

    @property
    def out_features(self) -> int:
        return self.n

    def create_weights(self, stored: Mapping[str, StoredTensor], allocate: Callable[..., Tensor]) -> None:
        self.method.create_weights(self, stored, allocate)

    def process_weights_after_loading(self) -> None:
        self.method.process_weights_after_loading(self)

    def add(self, suffix: str, param: nn.Parameter) -> None:
        """A parameter for the stored tensor `suffix` (which may hold dots)."""
        self.stored[suffix] = param
        self.register_parameter(suffix.replace(".", "__"), param)

    def share(self, other: Mapping[str, nn.Parameter]) -> None:
        """Use another layer's parameters (a tied head)."""
        for suffix, param in other.items():
            self.add(suffix, param)

    def drop_stored(self) -> None:
        """Forget the stored tensors, except the bias."""
        for suffix in [suffix for suffix in self.stored if suffix != "bias"]:
            del self.stored[suffix]
            self.register_parameter(suffix.replace(".", "__"), None)

    def forward(self, x: Tensor) -> Tensor:
        bias = self.stored.get("bias")
        if self.style == "row" and self.group.size > 1:
            y = self.group.sum(self.method.apply(self, x, None))
            return y if bias is None else y + bias
        y = self.method.apply(self, x, bias)
        return self.group.join(y) if self.style == "vocab" else y

    def extra_repr(self) -> str:
        return f"{self.path}, {self.style}, N={self.n}, K={self.k}"


class ParallelLMHead(ParallelLinear):
    """The rows of a head that a rank holds, joined to the logits of the whole vocabulary without its padding."""

    def __init__(self, path: str, n: int, k: int, vocab: int, method: LinearMethod, group: Group = ALONE) -> None:
        super().__init__(path, n, k, "vocab", method, group)
        self.vocab = vocab

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[..., : self.vocab]
