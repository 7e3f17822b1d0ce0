"""What this process holds: bytes of storages, and the peak of its own memory."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from types import TracebackType

import torch
from torch import Tensor, nn

EVERY_SECONDS = 0.01


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the distinct storages behind tensors; shared ones (tied tables) once, those that are not there never."""
    seen: dict[int, int] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes() and not tensor.is_meta:
            seen[storage.data_ptr()] = storage.nbytes()
    return sum(seen.values())


def resident_bytes(model: nn.Module) -> int:
    """Parameters, and what quantized layers were repacked into."""
    packed = (buffer for name, buffer in model.named_buffers() if name.rpartition(".")[2].startswith("packed_"))
    return storage_bytes((*model.parameters(), *packed))


def own_memory() -> int:
    """RssAnon + RssShmem of this process in bytes: what it has, without pages of files."""
    total = 0
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(("RssAnon:", "RssShmem:")):
                total += int(line.split()[1]) * 1024
    return total


class PeakMemory:
    """The highest `own_memory` while it is entered, looked at every hundredth of a second."""

    def __init__(self) -> None:
        self.start = self.peak = own_memory()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="mlload-memory")

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(EVERY_SECONDS):
            self.peak = max(self.peak, own_memory())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.peak = max(self.peak, own_memory())


def device_peak(device: torch.device) -> int:
    """Peak of what torch allocated on a GPU; 0 on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
