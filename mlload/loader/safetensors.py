"""load_format "safetensors": ranged reads of the rank's own bytes; no file is mapped or read whole."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.finding import MlloadError
from mlload.loader.base import BaseModelLoader, Destinations, RankTensor
from mlload.loader.reader import read_tensors
from mlload.loader.reads import rank_reads
from mlload.loader.share import share_of
from mlload.loader.whole import layout_of
from mlload.plan.plan import Plan


class FileLoader(BaseModelLoader):
    """Any checkpoint whose headers say where each tensor's bytes lie."""

    load_format = ""

    def tensors(self, plan: Plan, rank: int, destinations: Destinations) -> Iterator[RankTensor]:
        checkpoint = plan.model.checkpoint
        held = layout_of(checkpoint) or checkpoint.format
        if held != self.load_format:
            raise MlloadError(
                f"load_format {self.load_format} wants {self.load_format} files, and {checkpoint.label} holds "
                f"{'no weights' if held == 'none' else held}",
                hint=None if held == "none" else "--load-format auto takes what is there",
            )
        return read_tensors(checkpoint.source, rank_reads(plan, rank), destinations, share_of(plan, rank))


class SafetensorsLoader(FileLoader):
    load_format = "safetensors"
