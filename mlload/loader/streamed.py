"""What loaders of other projects have in common: they give whole tensors of safetensors files, each once, and the
rank's part is cut out of each as it comes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.base import Source
from mlload.loader.base import BaseModelLoader, Destinations, RankTensor
from mlload.loader.whole import layout_of
from mlload.plan.plan import Plan
from mlload.plan.segments import Segment


class StreamedLoader(BaseModelLoader):
    """load_format: its name; package: what it needs; extra: of ours that brings it"""

    load_format = ""
    package = ""
    extra = ""

    @abstractmethod
    def whole_tensors(
        self, source: Source, names: dict[str, list[str]], device: torch.device
    ) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of `names` (file of the source -> tensors in it), valid until the next one is asked for.

        device: where the parameters are"""

    def tensors(self, plan: Plan, rank: int, destinations: Destinations) -> Iterator[RankTensor]:
        checkpoint = plan.model.checkpoint
        held = layout_of(checkpoint) or checkpoint.format
        if held != "safetensors":
            raise MlloadError(
                f"load_format {self.load_format} wants safetensors files, and {checkpoint.label} holds "
                f"{'no weights' if held == 'none' else held}",
                hint=None if held == "none" else "--load-format auto takes what is there",
            )
        wanted: dict[str, list[Segment]] = {}
        files: dict[str, list[str]] = {}
        for segment in plan.segments(rank):
            ref = checkpoint.tensors.get(segment.tensor)
            if ref is None:
                continue
            if segment.tensor not in wanted:
                files.setdefault(checkpoint.files[ref.file].name, []).append(segment.tensor)
            wanted.setdefault(segment.tensor, []).append(segment)
        device = next((one.param.device for one in destinations.values()), torch.device("cpu"))
        for name, whole in self.whole_tensors(checkpoint.source, dict(sorted(files.items())), device):
            nbytes = whole.numel() * whole.element_size()
            for segment in wanted.pop(name, ()):
                box, to = segment.box, segment.to
                if len(box) != whole.dim() and (whole.numel() == 1 or not box):
                    # A scalar is written as [] or as [1], and a text has any length.
                    box = to = tuple((0, size) for size in whole.shape)
                if len(box) != whole.dim() or any(
                    stop > size for (_, stop), size in zip(box, whole.shape, strict=True)
                ):
                    raise MlloadError(
                        f"{name} has the shape {list(whole.shape)}, which the config does not expect",
                        hint="mlload inspect shows which shapes are expected",
                        exit_code=1,
                    )
                piece = whole[tuple(slice(start, stop) for start, stop in box)]
                yield RankTensor(name, to or ((0, 1),), piece, nbytes)
                nbytes = 0

    def imported(self, module: str = "") -> Any:
        """A module of the package. Raises MlloadError with the line that installs it."""
        try:
            return import_module(module or self.package)
        except ImportError as error:
            raise MlloadError(
                f"load_format {self.load_format} needs {self.package.replace('_', '-')} ({error})",
                hint=f"pip install 'mlload[{self.extra}]'",
                exit_code=3,
            ) from error


def paths(source: Source, names: list[str], load_format: str) -> list[str]:
    """Where the files of a local source lie. Raises MlloadError for a remote one."""
    path = getattr(source, "path", None)
    if source.remote or path is None:
        raise MlloadError(
            f"load_format {load_format} reads local files, and {source.label} is remote",
            hint="--load-format safetensors and runai_streamer read s3:// directly",
        )
    return [str(path(name)) for name in names]
