"""load_format "instanttensor": straight from disk into GPU memory; it has no way onto a CPU."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.base import Source
from mlload.loader.streamed import StreamedLoader, paths


class InstantTensorLoader(StreamedLoader):
    load_format = "instanttensor"
    package = "instanttensor"
    extra = "instanttensor"

    def whole_tensors(
        self, source: Source, names: dict[str, list[str]], device: torch.device
    ) -> Iterator[tuple[str, Tensor]]:
        files = paths(source, list(names), self.load_format)
        if device.type != "cuda":
            raise MlloadError(
                f"load_format instanttensor reads into NVIDIA GPUs, and this load is for the {device.type}",
                hint="--device cuda on a machine with a GPU, or another --load-format",
                exit_code=3,
            )
        library = self.imported()
        wanted = [name for held in names.values() for name in held]
        # A rank reads alone: without a process group no other rank has to take part.
        with library.safe_open(
            files, framework="pt", device=device, tensor_filter=wanted, tensor_name_match_mode="exact"
        ) as opened:
            yield from opened.tensors()
