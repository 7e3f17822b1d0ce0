"""The samples between two layers: float32 [S, L, H] in two files that layers read and write in turn.

The files lie in the run's own folder and are mapped, so that the kernel writes out and drops what memory it needs for
something else: they count as a file's pages and not as the process's own. They are also what an interrupted run goes
on from. Layer i reads file i % 2 and writes the other one, so that what it began with is whole until it is done.
"""

from __future__ import annotations

import math
import os

import torch
from torch import Tensor

from mlload.checkpoint.finding import MlloadError

NAMES = ("mlload-samples.0", "mlload-samples.1")


class Samples:
    """`shape` [S, L, H] in `folder`."""

    def __init__(self, folder: str, shape: tuple[int, ...]) -> None:
        self.folder = folder
        self.shape = shape
        self._files: dict[int, Tensor] = {}

    def before(self, layer: int) -> Tensor:
        """What layer `layer` reads."""
        return self._mapped(layer % 2)

    def after(self, layer: int) -> Tensor:
        """Where it writes."""
        return self._mapped((layer + 1) % 2)

    def sync(self, layer: int) -> None:
        """What layer `layer` wrote is on the disk."""
        descriptor = os.open(self._path((layer + 1) % 2), os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def whole(self, layer: int) -> bool:
        """Whether the file that layer `layer` reads is there as it must be."""
        try:
            return os.path.getsize(self._path(layer % 2)) == 4 * math.prod(self.shape)
        except OSError:
            return False

    def _path(self, number: int) -> str:
        return os.path.join(self.folder, NAMES[number])

    def _mapped(self, number: int) -> Tensor:
        if number not in self._files:
            path, count = self._path(number), math.prod(self.shape)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                # A hole that cannot be filled would be a signal in the middle of a store: the disk's room is taken now.
                getattr(os, "posix_fallocate", _truncate)(descriptor, 0, 4 * count)
            except OSError as error:
                raise MlloadError(
                    f"{path} cannot hold the samples ({4 * count:,} bytes): {error.strerror}",
                    hint="make room, then the same command with --resume; or take fewer --samples",
                    exit_code=1,
                ) from error
            finally:
                os.close(descriptor)
            self._files[number] = torch.from_file(path, shared=True, size=count).reshape(self.shape)
        return self._files[number]


def _truncate(descriptor: int, start: int, length: int) -> None:
    """Where the system cannot take room ahead."""
    os.ftruncate(descriptor, start + length)
