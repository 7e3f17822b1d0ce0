"""Which bytes of which tensor a rank holds, expanded one by one for whoever reads or writes them."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from mlload.checkpoint.tensor import DTYPE_BITS
from mlload.plan.bound import BoundParam
from mlload.plan.cutting import cut_axis, runs, stored_run
from mlload.plan.placement import Placement
from mlload.plan.stored import Stored

Box = tuple[tuple[int, int], ...]


class Segment(NamedTuple):
    """A box of one source tensor, and where it goes.

    rank:    that holds it
    tensor:  name in the source
    box:     (start, stop) per stored dim
    to:      (start, stop) per dim in the rank's own tensor of that name
    shape:   of the rank's own tensor
    nbytes:  of the box, in file dtype
    role:    part of a fused layer ("q", "gate"); "" for a whole module
    engine:  path of the engine's module that holds it
    kind:    what the tensor is to its linear: "weight", "scale", "zero", "bias", ...
    transforms: what to do on the way, in order (none for a plain copy), see `ParamSpec`
    """

    rank: int
    tensor: str
    box: Box
    to: Box
    shape: tuple[int, ...]
    nbytes: int
    role: str
    engine: str
    kind: str
    transforms: tuple[str, ...] = ()


class Cut(NamedTuple):
    """A rank's share of one stored tensor: boxes with their destinations, and the shape of its own tensor."""

    boxes: tuple[tuple[Box, Box, str], ...]
    shape: tuple[int, ...]


def cut_tensor(param: BoundParam, tensor: Stored, at: Placement, vocab_padding: int = 64) -> Cut:
    """The boxes of one stored tensor that a placement holds."""
    spec = param.spec
    axis = cut_axis(spec) if at.size > 1 else ""
    if tensor.role == "bias" and axis == "K":
        axis = ""
    along = next((i for i, dim in enumerate(tensor.dims) if axis and dim.axis == axis), None)
    whole: list[tuple[int, int]] = []
    own: list[int] = []
    for dim, size in zip(tensor.dims, tensor.shape, strict=True):
        if dim.axis == "E" and at.stacked is not None:
            whole.append((at.stacked.start, at.stacked.stop))
            own.append(len(at.stacked))
        else:
            whole.append((0, size))
            own.append(size)
    if along is None:
        return Cut(((tuple(whole), tuple((0, size) for size in own), ""),), tuple(own))
    dim = tensor.dims[along]
    boxes: list[tuple[Box, Box, str]] = []
    end = 0
    for run in runs(spec, at.size, at.rank, vocab_padding):
        start, stop = stored_run(dim, run.start, run.stop)
        source, target = list(whole), [(0, size) for size in own]
        source[along], target[along] = (start, stop), (end, end + stop - start)
        boxes.append((tuple(source), tuple(target), run.role))
        end += stop - start
    own[along] = end
    return Cut(tuple(boxes), tuple(own))


def cut_bytes(param: BoundParam, tensor: Stored, at: Placement, vocab_padding: int = 64) -> int:
    """Bytes of the source that `cut_tensor` covers."""
    return sum(box_bytes(box, tensor.dtype) for box, _, _ in cut_tensor(param, tensor, at, vocab_padding).boxes)


def box_bytes(box: Box, dtype: str) -> int:
    return prod(stop - start for start, stop in box) * DTYPE_BITS.get(dtype, 8) // 8


def segments(param: BoundParam, at: Placement, rank: int, vocab_padding: int = 64) -> Iterator[Segment]:
    """Every segment of a family on a rank, layer by layer, expert by expert."""
    spec = param.spec
    cuts = [(tensor, cut_tensor(param, tensor, at, vocab_padding)) for tensor in param.stored]
    for layer in (None,) if at.layers is None else at.layers:
        module, engine = (
            path if layer is None else path.replace("{layer}", str(layer)) for path in (spec.module, spec.engine)
        )
        for expert in (None,) if at.experts is None else at.experts:
            path = module if expert is None else module.replace("{expert}", str(expert))
            for tensor, cut in cuts:
                for box, to, role in cut.boxes:
                    yield Segment(
                        rank=rank,
                        tensor=path + tensor.suffix,
                        box=box,
                        to=to,
                        shape=cut.shape,
                        nbytes=box_bytes(box, tensor.dtype),
                        role=role,
                        engine=engine,
                        kind=tensor.role,
                        transforms=spec.transforms,
                    )
