"""Which tensors are parts of one weight, as the model's architecture knows it."""

from __future__ import annotations

from collections.abc import Callable

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.plan.model import Model, read_model
from mlload.writer.sizes import weight_of


def weight_groups(checkpoint: Checkpoint) -> Callable[[str], str]:
    """Tensor name -> the module that it belongs to. Where no architecture can be told, names are the guide."""
    try:
        return groups_of(read_model(checkpoint))
    except MlloadError:
        return weight_of


def groups_of(model: Model) -> Callable[[str], str]:
    known = {
        path + tensor.suffix: path for param in model.params for path in param.modules() for tensor in param.stored
    }
    return lambda name: known.get(name) or weight_of(name)
