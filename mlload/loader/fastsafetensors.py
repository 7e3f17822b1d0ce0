"""load_format "fastsafetensors": whole files into one block of memory each, as IBM's fastsafetensors does.

Without a GPU it reads with `nogds`: threads of `pread` into host memory. On a GPU it tries GPUDirect Storage first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.base import Source
from mlload.loader.streamed import StreamedLoader, paths


class FastSafetensorsLoader(StreamedLoader):
    load_format = "fastsafetensors"
    package = "fastsafetensors"
    extra = "fastsafetensors"

    def whole_tensors(
        self, source: Source, names: dict[str, list[str]], device: torch.device
    ) -> Iterator[tuple[str, Tensor]]:
        library = self.imported()
        nogds = device.type != "cuda"
        # One file after the other, so that no more than one lies in memory beside the model.
        for path, wanted in zip(paths(source, list(names), self.load_format), names.values(), strict=True):
            try:
                loader = self._loader(library, path, str(device), nogds)
            except RuntimeError as error:
                if nogds or "gds" not in str(error).lower():
                    raise MlloadError(f"fastsafetensors cannot read {path}: {error}", exit_code=3) from error
                nogds = True
                loader = self._loader(library, path, str(device), nogds)
            try:
                held = loader.copy_files_to_device()
                for name in wanted:
                    yield name, held.get_tensor(name)
                held.close()
            finally:
                loader.close()

    @staticmethod
    def _loader(library: Any, path: str, device: str, nogds: bool) -> Any:
        loader = library.SafeTensorsFileLoader(library.SingleGroup(), device, nogds=nogds, framework="pytorch")
        loader.add_filenames({0: [path]})
        return loader
