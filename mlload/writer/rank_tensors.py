"""A rank's own tensors under their checkpoint names, put together from its segments."""

from __future__ import annotations

from collections.abc import Iterator
from sys import intern

from mlload.checkpoint.finding import MlloadError
from mlload.plan.plan import Plan
from mlload.plan.segments import Box, Segment
from mlload.writer.boxes import volume, whole
from mlload.writer.holdings import Holdings
from mlload.writer.layout import OutputTensor, own_takes


def rank_tensors(plan: Plan, rank: int, holdings: Holdings) -> Iterator[OutputTensor]:
    """Every tensor that a rank holds (draft layers too), in the plan's order."""
    held: dict[str, tuple[Segment, list[tuple[Box, Box]]]] = {}
    for segment in plan.segments(rank, draft=True):
        if segment.tensor not in holdings.tensors:
            continue  # an optional tensor that only other layers have
        # One text for the name, however many ranks hold the tensor.
        held.setdefault(intern(segment.tensor), (segment, []))[1].append(fitted(segment, holdings))
    for name, (segment, pairs) in held.items():
        source = holdings[name]
        shape = source.shape if len(segment.shape) != len(source.shape) else segment.shape
        yield OutputTensor(name, source.dtype, shape, own_takes(tuple(pairs)))


def fitted(segment: Segment, holdings: Holdings) -> tuple[Box, Box]:
    """Box and destination of a segment, checked against the tensor that is there."""
    shape = holdings[segment.tensor].shape
    if len(segment.box) != len(shape) and (not segment.box or volume(segment.box) == volume(whole(shape)) == 1):
        return whole(shape), whole(shape)  # a scalar is written as [] or as [1], and a text has any length
    if len(segment.box) != len(shape) or any(stop > size for (_, stop), size in zip(segment.box, shape, strict=True)):
        raise MlloadError(
            f"{segment.tensor} has the shape {list(shape)}, which the config does not expect: it cannot be cut",
            hint="mlload inspect shows which shapes are expected",
            exit_code=1,
        )
    return segment.box, segment.to
