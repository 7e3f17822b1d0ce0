"""Where one of the rank's own tensors goes: a parameter, or a part of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mlload.plan.segments import Box


class Destination:
    """A parameter (or the part `index` of it) that holds one tensor of the checkpoint.

    index:  slices of the parameter; an expert's place in a stack, one of two fused halves
    shape:  of the rank's own tensor, which the part holds after `transpose` of its last two dims; a parameter may be
            padded beyond it in its first dim (a vocabulary)
    fixed:  the parameter must stay in the memory that it has, because something else refers to it
    """

    def __init__(
        self,
        param: nn.Parameter,
        shape: tuple[int, ...],
        *,
        index: tuple[Any, ...] = (),
        transpose: bool = False,
        fixed: bool = False,
    ) -> None:
        self.param = param
        self.shape = shape
        self.index = index
        self.transpose = transpose
        self.fixed = fixed

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    def view(self) -> Tensor:
        """The part of the parameter, in the checkpoint's orientation; of `shape` where nothing is padded."""
        part = self.param.data[self.index] if self.index else self.param.data
        if self.transpose:
            part = part.transpose(-1, -2)
        if part.shape != torch.Size(self.shape):
            if part.numel() == self.numel:
                return part.reshape(self.shape)
            part = part[tuple(slice(0, size) for size in self.shape)]
        return part

    def memory(self, dtype: torch.dtype) -> Tensor | None:
        """Memory of the whole tensor that bytes of `dtype` may be read into, None where there is none."""
        if self.param.device.type != "cpu" or self.param.dtype != dtype or self.transpose:
            return None
        if hasattr(self.param, "weight_loader"):
            return None
        view = self.view()
        return view if view.dim() == 0 or view.stride(-1) == 1 else None

    def adopts(self, dtype: torch.dtype) -> bool:
        """Whether a tensor of `dtype` that lies elsewhere in memory may become the whole parameter."""
        return (
            not (self.fixed or self.index or self.transpose or hasattr(self.param, "weight_loader"))
            and self.param.device.type == "cpu"
            and self.param.dtype == dtype
            and self.param.shape == torch.Size(self.shape)
        )

    def adopt(self, tensor: Tensor) -> None:
        self.param.data = tensor

    def put(self, box: Box, piece: Tensor) -> None:
        """Hand a piece to the parameter's `weight_loader`, else copy it with a cast."""
        loader: Callable[[nn.Parameter, Tensor, Tensor], None] | None = getattr(self.param, "weight_loader", None)
        view = self.view()
        part = view[tuple(slice(start, stop) for start, stop in box)] if box and view.dim() else view
        (loader or copy_cast)(self.param, part, piece)


def copy_cast(param: nn.Parameter, part: Tensor, piece: Tensor) -> None:
    """The default `weight_loader`: the same values in the parameter's dtype."""
    part.copy_(piece.reshape(part.shape))
