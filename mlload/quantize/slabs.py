"""Data-free methods by several threads: a few rows of a weight read, quantized, packed and written at a time.

A slab is small enough that everything between reading and writing stays in a core's cache, and that memory does not
follow the size of a tensor. Formats that pack along the rows, transposed, take their weights whole.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.tensor import DTYPE_BITS
from mlload.loader.dtypes import torch_dtype
from mlload.quant.formats import spec as stored_spec
from mlload.quant.formats.tensors import shape, stored_length, unit
from mlload.quant.spec import Scheme, TensorSpec
from mlload.quantize.allocator import keep_slabs
from mlload.quantize.layout import Output
from mlload.quantize.recipe import Recipe
from mlload.quantize.source import refuse_unless_finite
from mlload.quantize.targets import Target, Targets
from mlload.quantize.weights import packed, round_to_nearest, scale_dtype
from mlload.writer.copies import CHUNK, Job, Write
from mlload.writer.execute import Copier, Epoch

ELEMENTS = 1 << 19  # of a slab
SHARED = ("tensor", "tensor_group")  # strategies of one scale for a whole fused layer


class Slab(NamedTuple):
    """Rows [start, stop) of a target's weight: `length` bytes of `file` from `offset` on."""

    target: Target
    start: int
    stop: int
    file: str
    offset: int
    length: int


def workers() -> int:
    """Threads: one for each processor that this process may use, and one that waits for the disk."""
    return min(16, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1) + 1


def slab_rows(scheme: Scheme, n: int, k: int) -> int:
    """Rows of a slab: a multiple of what the stored tensors hold together; all, where rows are not outermost."""
    specs = stored_spec(scheme, n, k)
    if any(dim.axis == "N" for tensor in specs for dim in tensor.dims[1:]):
        return n
    step = max(1, unit(specs, "N"))
    return min(n, max(step, ELEMENTS // max(1, k) // step * step))


def jobs(checkpoint: Checkpoint, targets: Targets, output: Output) -> Iterator[Job | Slab]:
    """Everything that is to be written, in the order of the source."""
    by_weight = {target.weight: target for target in targets.targets}
    for name, ref in checkpoint.tensors.items():
        file, target = checkpoint.files[ref.file].name, by_weight.get(name)
        if target is None:
            number, place = output.places[name]
            for at in range(0, ref.nbytes, CHUNK):
                length = min(CHUNK, ref.nbytes - at)
                yield Job(file, ref.offset + at, length, (Write(number, length, (0,), (place + at,)),))
            continue
        rows, width = slab_rows(target.scheme, target.n, target.k), ref.nbytes // target.n
        for start in range(0, target.n, rows):
            stop = min(target.n, start + rows)
            yield Slab(target, start, stop, file, ref.offset + start * width, (stop - start) * width)


class Quantizer(Copier):
    """Carries out both kinds of jobs."""

    def __init__(self, checkpoint: Checkpoint, targets: Targets, recipe: Recipe, output: Output, **fields: Any) -> None:
        super().__init__(checkpoint.source, **fields)
        self.checkpoint = checkpoint
        self.recipe = recipe
        self.output = output
        self.members: dict[str, list[Target]] = {}
        for target in targets.targets:
            if target.scheme.strategy in SHARED:
                self.members.setdefault(target.fused, []).append(target)
        self._largest: dict[str, float] = {}
        self._finding = {fused: threading.Lock() for fused in self.members}

    def run(self, jobs: Iterator[Any], done: int = 0) -> None:
        before = torch.get_num_threads()
        keep_slabs()
        torch.set_num_threads(1)  # threads of threads would only wait for one another
        try:
            super().run(jobs, done)
        finally:
            torch.set_num_threads(before)

    def carry_out(self, job: Job | Slab, epoch: Epoch, buffer: memoryview) -> None:
        if isinstance(job, Job):
            super().carry_out(job, epoch, buffer)
            return
        target = job.target
        weight = self._weight(job, buffer)
        largest = self._largest_of(target.fused) if target.scheme.strategy in SHARED else None
        parts = round_to_nearest(weight, target.scheme, target.dtype, largest=largest, clip=self.recipe.clip)
        raw = packed(target.scheme, parts)
        for tensor in stored_spec(target.scheme, target.n, target.k):
            if tensor.suffix in raw:
                self._place(job, tensor, raw[tensor.suffix])

    def _weight(self, job: Slab, buffer: memoryview) -> Tensor:
        """[rows, K]; valid until the buffer is used again."""
        piece = self.read(job, buffer)
        weight = torch.frombuffer(piece, dtype=torch_dtype(job.target.dtype)).reshape(job.stop - job.start, -1)
        refuse_unless_finite(weight, job.target.weight, self.checkpoint.label)
        return weight

    def _place(self, job: Slab, tensor: TensorSpec, raw: bytes) -> None:
        target = job.target
        number, place = self.output.places[f"{target.path}.{tensor.suffix}"]
        if tensor.dims[:1] and tensor.dims[0].axis == "N":
            rows = stored_length(tensor.dims[0], job.start)
            width = shape(tensor, target.n, target.k)[1:]
            bits = DTYPE_BITS[tensor.dtype or scale_dtype(target.scheme, target.dtype)]
            place += rows * int(np.prod(width, dtype=np.int64)) * bits // 8
        elif job.start:
            return  # of the whole layer, and written with its first rows
        elif tensor.role == "shape":
            raw = np.array([target.n, target.k], np.int64).tobytes()
        view = memoryview(raw)
        while view:
            written = os.pwrite(self.outputs[number], view, place)
            view, place = view[written:], place + written

    def _largest_of(self, fused: str) -> float:
        """Greatest magnitude in all parts of a fused layer."""
        with self._finding[fused]:
            if fused not in self._largest:
                self._largest[fused] = max(self._magnitude(target) for target in self.members[fused])
            return self._largest[fused]

    def _magnitude(self, target: Target) -> float:
        ref = self.checkpoint.tensors[target.weight]
        file, width = self.checkpoint.files[ref.file].name, ref.nbytes // target.n
        rows, buffer, found = max(1, CHUNK // max(1, width)), memoryview(bytearray(CHUNK)), 0.0
        for start in range(0, target.n, rows):
            stop = min(target.n, start + rows)
            piece = Slab(target, start, stop, file, ref.offset + start * width, (stop - start) * width)
            low, high = torch.aminmax(self._weight(piece, buffer))
            found = max(found, -float(low), float(high))
        return found
