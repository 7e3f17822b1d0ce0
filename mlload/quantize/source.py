"""Tensors of the source as torch's, read when asked for."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.tensor import TensorRef
from mlload.loader.dtypes import torch_dtype


class SourceTensors:
    """Reads whole tensors; local files are mapped, so that what is not touched costs nothing."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._files = [file.name for file in checkpoint.files]

    def raw(self, ref: TensorRef) -> bytes:
        name = self._files[ref.file]
        found = self.checkpoint.source.read(name, ref.offset, ref.nbytes)
        if len(found) != ref.nbytes:
            raise MlloadError(f"{name} is shorter than its header says: it has changed", exit_code=3)
        return found

    def tensor(self, name: str) -> Tensor:
        """As stored; not to be written to."""
        ref = self.checkpoint.tensors[name]
        dtype = torch_dtype(ref.dtype)
        if not ref.nbytes:
            return torch.empty(ref.shape, dtype=dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # bytes are not writable, and nobody writes
            return torch.frombuffer(self.raw(ref), dtype=dtype).reshape(ref.shape)

    def finite(self, name: str) -> Tensor:
        """The same. Raises MlloadError where it holds NaN or infinity."""
        found = self.tensor(name)
        refuse_unless_finite(found, name, self.checkpoint.label)
        return found


def refuse_unless_finite(values: Tensor, name: str, label: str) -> None:
    if not values.numel():
        return
    low, high = torch.aminmax(values)
    if not (torch.isfinite(low) and torch.isfinite(high)):
        raise NotFinite(
            f"{name} holds NaN or infinity: there is no scale for that",
            hint=f"mlload validate {label} --deep shows every such tensor",
            exit_code=1,
        )


class NotFinite(MlloadError):
    """A weight that can never be quantized."""
