"""What else would work where a size does not: other sizes for the same files, then the same GPUs arranged otherwise."""

from __future__ import annotations

from collections.abc import Callable

from mlload.checkpoint.finding import Hint
from mlload.plan.mesh import Mesh
from mlload.plan.model import Model

# Tensor-parallel sizes that are tried.
TENSOR_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 32)


def size_hints(mesh: Mesh, works: Callable[[Mesh], bool], model: Model) -> tuple[Hint, ...]:
    """Hints that need nothing but these files. works: whether a mesh breaks no rule."""
    hints: list[Hint] = []
    sizes = [size for size in TENSOR_SIZES if works(mesh._replace(tp=size, partition=None))]
    if sizes:
        stages = f" with {mesh.pp} pipeline stages" if mesh.pp > 1 else ""
        hints.append(Hint(f"these files work at tp {', '.join(map(str, sizes))}{stages}"))
    routed = any(param.expert_total for param in model.params)
    if routed and not mesh.ep and mesh.tp > 1 and works(mesh._replace(ep=True)):
        hints.append(Hint(f"they work at tp {mesh.tp} with expert parallelism", "--enable-expert-parallel"))
    other = _rearranged(mesh, works, model.config.layers)
    if other is not None:
        hints.append(
            Hint(
                f"the same {mesh.tp * mesh.pp} GPUs as tp {other.tp} with {other.pp} pipeline stages",
                f"--tensor-parallel-size {other.tp} --pipeline-parallel-size {other.pp}",
            )
        )
    return tuple(hints)


def _rearranged(mesh: Mesh, works: Callable[[Mesh], bool], layers: int) -> Mesh | None:
    """The same number of GPUs with fewer ranks a stage and more stages, as few stages as possible, and none of them
    without a layer."""
    gpus = mesh.tp * mesh.pp
    for size in range(mesh.tp - 1, 0, -1):
        if gpus % size == 0 and gpus // size <= max(layers, 1):
            other = mesh._replace(tp=size, pp=gpus // size, partition=None)
            if works(other):
                return other
    return None
