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
