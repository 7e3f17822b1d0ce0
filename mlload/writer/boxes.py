"""Boxes of tensors as runs of bytes.

A box is (start, stop) per dim. Everything that is copied is counted in bytes: `bytes_shape` and `bytes_box` turn the
last dim of a shape or a box into bytes, so that no later step needs to know a dtype (two 4-bit values share one).
Layers look alike, so that results are kept: a hundred thousand tensors share a few hundred boxes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import prod

from mlload.checkpoint.tensor import DTYPE_BITS
from mlload.plan.segments import Box

Shape = tuple[int, ...]
KEPT = 4096


@lru_cache(KEPT)
def whole(shape: Shape) -> Box:
    """The box that is the tensor."""
    return tuple((0, size) for size in shape)


def extent(box: Box) -> Shape:
    return tuple(stop - start for start, stop in box)


def volume(box: Box) -> int:
    return prod(stop - start for start, stop in box)


@lru_cache(KEPT)
def intersect(one: Box, other: Box) -> Box | None:
    """What two boxes share, None where they share nothing."""
    found: list[tuple[int, int]] = []
    for (a, b), (c, d) in zip(one, other, strict=True):
        start, stop = max(a, c), min(b, d)
        if start >= stop:
            return None
        found.append((start, stop))
    return tuple(found)


@lru_cache(KEPT)
def moved(box: Box, origin: Box, to: Box) -> Box:
    """`box`, a part of `origin`, at its place in `to` (a box of the same extent; one of the two may have further
    dims of extent 1 in front)."""
    more = len(to) - len(origin)
    if more < 0:
        box, origin = box[-more:], origin[-more:]
    inner = to[max(0, more) :]
    return to[: max(0, more)] + tuple(
        (start - o + t, stop - o + t) for (start, stop), (o, _), (t, _) in zip(box, origin, inner, strict=True)
    )


@lru_cache(KEPT)
def bytes_shape(shape: Shape, dtype: str) -> Shape:
    """The shape with its last dim in bytes; a scalar becomes one dim."""
    bits = DTYPE_BITS[dtype]
    shape = shape or (1,)
    return (*shape[:-1], (shape[-1] * bits + 7) // 8)


@lru_cache(KEPT)
def bytes_box(box: Box, dtype: str) -> Box:
    """The box with its last dim in bytes."""
    bits = DTYPE_BITS[dtype]
    box = box or ((0, 1),)
    start, stop = box[-1]
    return (*box[:-1], (start * bits // 8, (stop * bits + 7) // 8))


def runs(shape: Shape, box: Box) -> tuple[int, Iterator[int]]:
    """(length, offsets) of the contiguous runs that a box of a byte tensor consists of, in order."""
    inner = len(shape)
    length = 1
    while inner:
        inner -= 1
        start, stop = box[inner]
        length *= stop - start
        if (start, stop) != (0, shape[inner]):
            break
    # Dims before `inner` are walked; dim `inner` is the first that a run covers (partly).
    strides = [prod(shape[dim + 1 :]) for dim in range(len(shape))]
    base = box[inner][0] * strides[inner] if shape else 0
    walked = [range(box[dim][0] * strides[dim], box[dim][1] * strides[dim], strides[dim]) for dim in range(inner)]
    if not walked:
        return length, iter((base,))
    if len(walked) == 1:
        return length, iter(range(walked[0].start + base, walked[0].stop + base, walked[0].step))
    return length, (base + sum(steps) for steps in product(*walked))


def chunks(shape: Shape, limit: int) -> Iterator[tuple[Box, int, int]]:
    """(box, offset, length) of contiguous pieces of a byte tensor of at most `limit` bytes, in order."""
    total = prod(shape)
    if total == 0:
        return
    dim = 0
    while dim < len(shape) - 1 and prod(shape[dim + 1 :]) > limit:
        dim += 1
    stride = prod(shape[dim + 1 :])
    step = max(1, limit // stride)
    tail = whole(shape[dim + 1 :])
    offset = 0
    for outer in product(*(range(size) for size in shape[:dim])):
        head = tuple((at, at + 1) for at in outer)
        for start in range(0, shape[dim], step):
            stop = min(start + step, shape[dim])
            length = (stop - start) * stride
            yield (*head, (start, stop), *tail), offset, length
            offset += length
