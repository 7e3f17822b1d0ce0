"""Runs of bytes against numpy's own slicing, for boxes of any shape."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlload.plan.segments import Box
from mlload.writer.boxes import bytes_box, bytes_shape, chunks, intersect, moved, runs

SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)


@st.composite
def boxes(draw: Any, shape: tuple[int, ...]) -> Box:
    spans = []
    for size in shape:
        start = draw(st.integers(0, size - 1))
        spans.append((start, draw(st.integers(start + 1, size))))
    return tuple(spans)


def cells(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)


@given(st.data())
def test_runs_are_the_slice(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    box = data.draw(boxes(shape))
    array = np.arange(prod(shape)).reshape(shape)
    length, offsets = runs(shape, box)
    flat = array.reshape(-1)
    found = [value for at in offsets for value in flat[at : at + length]]
    assert found == array[cells(box)].reshape(-1).tolist()


@given(st.data())
def test_chunks_follow_one_another_and_stay_small(data: st.DataObject) -> None:
    shape, limit = data.draw(SHAPES), data.draw(st.integers(1, 200))
    array = np.arange(prod(shape)).reshape(shape)
    end = 0
    for box, offset, length in chunks(shape, limit):
        assert offset == end and length <= max(limit, 1)
        assert array[cells(box)].reshape(-1).tolist() == list(range(offset, offset + length))
        end = offset + length
    assert end == prod(shape)


@given(st.data())
def test_intersections_are_numpys(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    one, other = data.draw(boxes(shape)), data.draw(boxes(shape))
    marks = np.zeros(shape, int)
    marks[cells(one)] += 1
    marks[cells(other)] += 1
    common = intersect(one, other)
    assert (marks == 2).sum() == (0 if common is None else prod(stop - start for start, stop in common))
    if common is not None:
        assert (marks[cells(common)] == 2).all()
        assert moved(common, one, one) == common


def test_a_box_with_a_dim_more_in_front() -> None:
    """Expert 2 of a stack: rows 4 to 6 of its rows 3 to 9 become rows 11 to 13 of slot 2."""
    stacked = ((2, 3), (10, 16), (0, 8))
    assert moved(((4, 6), (0, 8)), ((3, 9), (0, 8)), stacked) == ((2, 3), (11, 13), (0, 8))
    assert moved(((2, 3), (11, 13), (0, 8)), stacked, ((3, 9), (0, 8))) == ((4, 6), (0, 8))


def test_bytes_of_dtypes_and_scalars() -> None:
    assert bytes_shape((3, 5), "BF16") == (3, 10)
    assert bytes_shape((), "F32") == (4,) and bytes_box((), "F32") == ((0, 4),)
    assert bytes_shape((2, 6), "F4") == (2, 3) and bytes_box(((0, 1), (2, 4)), "F4") == ((0, 1), (1, 2))
