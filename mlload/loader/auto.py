"""load_format "auto": what the checkpoint holds."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.finding import MlloadError
from mlload.loader.base import BaseModelLoader, Destinations, RankTensor
from mlload.plan.plan import Plan

# Checkpoint.format -> load_format
FORMATS = {"safetensors": "safetensors", "gguf": "gguf", "torch": "pt"}


class AutoLoader(BaseModelLoader):
    def tensors(self, plan: Plan, rank: int, destinations: Destinations) -> Iterator[RankTensor]:
        from mlload.loader.registry import get_model_loader

        return get_model_loader(load_format_of(plan)).tensors(plan, rank, destinations)


def load_format_of(plan: Plan) -> str:
    """What "auto" stands for. Raises MlloadError where there are no weights to load."""
    from mlload.loader.whole import layout_of

    checkpoint = plan.model.checkpoint
    if (layout := layout_of(checkpoint)) is not None:
        return layout
    if checkpoint.format not in FORMATS:
        raise MlloadError(
            f"{checkpoint.label} holds no weights that can be loaded ({checkpoint.format})",
            hint="--load-format dummy builds the model without weights",
        )
    return FORMATS[checkpoint.format]
