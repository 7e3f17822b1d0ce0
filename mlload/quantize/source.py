"""Tensors of the source as torch's, read when asked for."""

from __future__ import annotations

import os
import warnings

import torch
from torch import Tensor

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.tensor import TensorRef
from mlload.loader.dtypes import torch_dtype

MAPPED = 4 * 2**20  # bytes from which on a tensor is mapped


class SourceTensors:
    """Reads whole tensors. Large ones of local files are mapped: what is not touched is not read, and no memory of the
    process holds what is."""

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
            mapped = self._mapped(ref)
            if mapped is not None:
                return torch.frombuffer(mapped, dtype=dtype).reshape(ref.shape)
            return torch.frombuffer(self.raw(ref), dtype=dtype).reshape(ref.shape)

    def _mapped(self, ref: TensorRef) -> memoryview | None:
        path = getattr(self.checkpoint.source, "path", None)
        # Words of memory cannot begin where the file has them at an odd place.
        if path is None or ref.nbytes < MAPPED or ref.offset % 8:
            return None
        import mmap

        begin = ref.offset - ref.offset % mmap.ALLOCATIONGRANULARITY
        try:
            with open(path(self._files[ref.file]), "rb") as handle:
                if os.fstat(handle.fileno()).st_size < ref.offset + ref.nbytes:
                    return None  # it has changed: reading tells
                length = ref.offset + ref.nbytes - begin
                whole = mmap.mmap(handle.fileno(), length, offset=begin, access=mmap.ACCESS_READ)
        except OSError:
            return None
        return memoryview(whole)[ref.offset - begin :]

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
