"""The rows of a table that a rank holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from mlload.kernels.stored import dequantized
from mlload.quant.layers.group import ALONE, Group
from mlload.quant.layers.method import StoredTensor
from mlload.quant.spec import Scheme


class VocabParallelEmbedding(nn.Module):
    """Wraps the model's own table, which may scale what it looks up.

    rows: of the whole table that lie on this rank, [start, stop)
    Ids that lie on other ranks look up nothing here; the sum over the ranks is the row.
    """

    def __init__(
        self,
        inner: nn.Module,
        rows: tuple[int, int],
        width: int,
        dtype: torch.dtype,
        scheme: Scheme | None = None,
        group: Group = ALONE,
    ) -> None:
        super().__init__()
        self.inner = inner
        self.start, self.stop = rows
        self.width = width
        self.dtype = dtype
        self.scheme = scheme
        self.group = group
        self.stored: dict[str, nn.Parameter] = {}
        inner.padding_idx = None  # type: ignore[assignment]
        if scheme is not None:
            # The class may still want to see a weight when it computes its buffers.
            inner.weight = nn.Parameter(torch.empty(0), requires_grad=False)

    @property
    def weight(self) -> Tensor:
        return self.stored["weight"]

    def create_weights(self, stored: Mapping[str, StoredTensor], allocate: Callable[..., Tensor]) -> None:
        for suffix, tensor in stored.items():
            dtype = self.dtype if self.scheme is None else tensor.dtype
            param = nn.Parameter(allocate(tensor.shape, dtype), requires_grad=False)
            self.stored[suffix] = param
            if self.scheme is None:
                setattr(self.inner, suffix, param)
            else:
                self.register_parameter(suffix.replace(".", "__") + "_stored", param)

    def forward(self, ids: Tensor) -> Tensor:
        if self.group.size == 1:
            return self._look_up(ids)
        mine = (ids >= self.start) & (ids < self.stop)
        found = self._look_up(torch.where(mine, ids - self.start, 0))
        return self.group.sum(torch.where(mine[..., None], found, 0))

    def _look_up(self, ids: Tensor) -> Tensor:
        if self.scheme is None:
            found: Tensor = self.inner(ids)
            return found
        rows = {suffix: param.data[ids.reshape(-1)] for suffix, param in self.stored.items()}
        values = dequantized(self.scheme, rows, ids.numel(), self.width).to(self.dtype)
        scale = getattr(self.inner, "embed_scale", None)
        values = values.reshape(*ids.shape, self.width)
        return values if scale is None else values * scale.to(values.dtype)
