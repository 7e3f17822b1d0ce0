"""load_format "npz": the checkpoint's tensors in `weights.npz` beside its config."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from mlload.loader import BaseModelLoader, RankTensor
from mlload.loader.base import Destinations
from mlload.plan.plan import Plan


class NpzLoader(BaseModelLoader):
    """float32 arrays by tensor name; a rank takes the boxes that the plan gives it."""

    def tensors(self, plan: Plan, rank: int, destinations: Destinations) -> Iterator[RankTensor]:
        checkpoint = plan.model.checkpoint
        folder = checkpoint.label
        with np.load(f"{folder}/weights.npz") as arrays:
            for segment in plan.segments(rank):
                box = tuple(slice(start, stop) for start, stop in segment.box)
                piece = torch.from_numpy(np.ascontiguousarray(arrays[segment.tensor][box]))
                yield RankTensor(segment.tensor, segment.to, piece, piece.nbytes)
