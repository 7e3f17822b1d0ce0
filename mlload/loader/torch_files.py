"""load_format "pt": `torch.load(weights_only=True)`, mapped, one file after the other."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.local import LocalSource
from mlload.loader.base import BaseModelLoader, Destinations, RankTensor
from mlload.plan.plan import Plan
from mlload.plan.segments import Segment


class TorchLoader(BaseModelLoader):
    """Pickles are never executed: what `weights_only` does not allow is refused."""

    def tensors(self, plan: Plan, rank: int, destinations: Destinations) -> Iterator[RankTensor]:
        checkpoint = plan.model.checkpoint
        if checkpoint.format != "torch" or not isinstance(checkpoint.source, LocalSource):
            what = checkpoint.format if checkpoint.format != "torch" else "remote files"
            raise MlloadError(f"load_format pt wants local .bin or .pt files, and {checkpoint.label} holds {what}")
        by_file: dict[int, list[Segment]] = {}
        for segment in plan.segments(rank):
            if segment.tensor in checkpoint.tensors:
                by_file.setdefault(checkpoint.tensors[segment.tensor].file, []).append(segment)
        for number, segments in sorted(by_file.items()):
            name = checkpoint.files[number].name
            state = load_file(checkpoint.source.path(name), name)
            for segment in segments:
                if segment.tensor not in state:
                    raise MlloadError(f"{name} does not hold {segment.tensor}", exit_code=1)
                whole = state[segment.tensor]
                piece = whole[tuple(slice(*run) for run in segment.box)] if segment.box else whole
                yield RankTensor(segment.tensor, segment.to, piece, piece.numel() * piece.element_size())


def load_file(path: str, name: str) -> Mapping[str, Tensor]:
    """The tensors of one file, mapped where the file is a zip; `state_dict` is looked through."""
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=_is_zip(path))
    except pickle.UnpicklingError as error:
        reason = str(error).split("\n")[0]
        raise MlloadError(f"{name} holds more than tensors and is not executed: {reason}", exit_code=1) from error
    except (RuntimeError, EOFError, ValueError) as error:
        raise MlloadError(f"{name} cannot be read: {str(error).splitlines()[0]}", exit_code=1) from error
    for key in ("state_dict", "model", "module"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, Mapping):
        raise MlloadError(f"{name} holds a {type(state).__name__}, not tensors by name", exit_code=1)
    return {key: value for key, value in state.items() if isinstance(value, Tensor)}


def _is_zip(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"PK"
