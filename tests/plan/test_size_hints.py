"""Other arrangements of the same GPUs, worked out by hand."""

from __future__ import annotations

from mlload.plan.mesh import Mesh
from mlload.plan.model import read_model
from mlload.plan.size_hints import size_hints
from tests.quant.checkpoints import checkpoint
from tests.validators.build import LLAMA, llama


def commands(mesh: Mesh, layers: int) -> list[str | None]:
    """Of a model whose sizes above 2 break a rule."""
    fields = {**LLAMA, "num_hidden_layers": layers}
    model = read_model(checkpoint(fields, llama(fields)))
    return [hint.command for hint in size_hints(mesh, lambda other: other.tp <= 2, model)]


def test_the_same_gpus_as_more_stages() -> None:
    """4 x 1 = 2 x 2."""
    assert commands(Mesh(4), layers=2) == [None, "--tensor-parallel-size 2 --pipeline-parallel-size 2"]


def test_never_as_stages_without_a_layer() -> None:
    """8 x 2 = 2 x 8 = 1 x 16, and there are 4 layers."""
    assert commands(Mesh(8, 2), layers=4) == [None]
