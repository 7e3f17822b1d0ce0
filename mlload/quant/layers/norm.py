"""A norm over all heads at once, of which each rank holds some."""

from __future__ import annotations

from torch import Tensor, nn

from mlload.quant.layers.group import Group


class GatheredNorm(nn.Module):
    """Joins the ranks' channels, applies the whole norm, keeps this rank's.

    share: channels of this rank; copies: how many ranks hold the same ones (KV heads, when there are more ranks)
    """

    def __init__(self, inner: nn.Module, share: int, copies: int, group: Group) -> None:
        super().__init__()
        self.inner = inner
        self.share = share
        self.copies = copies
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        joined = self.group.join(x)
        every = joined.reshape(*x.shape[:-1], self.group.size, self.share)
        whole: Tensor = self.inner(every[..., :: self.copies, :].flatten(-2))
        start = self.group.rank // self.copies * self.share
        return whole[..., start : start + self.share]


class GatheredGatedNorm(nn.Module):
    """A gated norm over all channels of a mixer, of which each rank holds an equal run, weight included.

    inner: the class's norm with this rank's weight; forward(x, gate). The ranks' weights are joined once, at the first
    call, and kept beside: they are no parameter of this rank.
    """

    def __init__(self, inner: nn.Module, rank: int, group: Group) -> None:
        super().__init__()
        self.inner = inner
        self.rank = rank
        self.group = group
        weight = inner._parameters.pop("weight")
        assert weight is not None
        self.weight = weight
        self.joined = False

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        if not self.joined:
            self.inner.weight = self.group.join(self.weight)
            self.joined = True
        width = x.shape[-1]
        whole: Tensor = self.inner(self.group.join(x), None if gate is None else self.group.join(gate))
        return whole[..., self.rank * width : (self.rank + 1) * width]
