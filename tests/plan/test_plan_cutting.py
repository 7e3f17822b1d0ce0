"""Cuts of one axis: the slices of all ranks are the whole, whatever the parts and groups."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlload.plan.cutting import Run, allocated_length, held_length, runs, share, stored_run
from mlload.plan.params import ParamSpec, Part
from mlload.quant.spec import Dim


def column(*parts: Part, groups: int = 1) -> ParamSpec:
    width = sum(part.length for part in parts)
    return ParamSpec("m", "linear", (width, 8), ("N", "K"), style="column", parts=parts, groups=groups)


@st.composite
def fused(draw: st.DrawFn) -> tuple[ParamSpec, int]:
    """A fused column whose parts divide by the size: split parts, and KV parts that may have to be shared."""
    size = draw(st.sampled_from([1, 2, 3, 4, 8]))
    unit = draw(st.sampled_from([1, 2, 5]))
    groups = draw(st.sampled_from([1, size, 2 * size, 6 * size]))
    parts = []
    for index in range(draw(st.integers(1, 4))):
        if draw(st.booleans()) or groups > 1:
            # A grouped part has an equal share in every group.
            parts.append(
                Part(f"p{index}", unit * groups * draw(st.integers(1, 3)) * (size if groups == 1 else 1), unit)
            )
        else:
            count = draw(st.sampled_from([n for n in range(1, 2 * size + 1) if n % size == 0 or size % n == 0]))
            parts.append(Part(f"p{index}", unit * count, unit, "kv"))
    return column(*parts, groups=groups), size


def cells(found: tuple[Run, ...]) -> Iterator[int]:
    for run in found:
        yield from range(run.start, run.stop)


@given(fused())
def test_the_slices_of_all_ranks_cover_the_axis(case: tuple[ParamSpec, int]) -> None:
    spec, size = case
    covered: set[int] = set()
    for rank in range(size):
        mine = runs(spec, size, rank)
        assert [run.start for run in mine] == sorted(run.start for run in mine)
        assert len(list(cells(mine))) == held_length(spec, size, rank) == allocated_length(spec, size)
        covered.update(cells(mine))
    assert covered == set(range(spec.n))


@given(fused())
def test_a_rank_packs_its_runs_without_holes(case: tuple[ParamSpec, int]) -> None:
    spec, size = case
    for rank in range(size):
        end = 0
        for run in runs(spec, size, rank):
            assert run.to == end
            end += run.stop - run.start


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 6), st.integers(1, 5))
def test_split_parts_are_held_once_and_shared_heads_equally_often(size: int, heads: int, unit: int) -> None:
    part = Part("q", heads * size * unit, unit)
    held = [share(part, size, rank) for rank in range(size)]
    assert [s.start for s in held[1:]] == [s.stop for s in held[:-1]]
    for count in (n for n in (1, 2, 4, 8) if n <= size):
        kv = [share(Part("k", count * unit, unit, "kv"), size, rank) for rank in range(size)]
        owners = {start: sum(1 for s in kv if s.start == start) for start in {s.start for s in kv}}
        assert owners == {head * unit: size // count for head in range(count)}


@given(st.integers(1, 300), st.sampled_from([1, 2, 4, 8, 16]))
def test_a_vocabulary_is_padded_and_the_padding_belongs_to_the_last_ranks(rows: int, size: int) -> None:
    part = Part("", rows, 1, "vocab")
    held = [share(part, size, rank) for rank in range(size)]
    padded = -(-rows // 64) * 64
    assert all(s.allocated == padded // size for s in held)
    assert sum(s.stop - s.start for s in held) == rows
    assert all(s.stop - s.start == s.allocated for s in held if s.stop < rows)


@given(st.integers(2, 40), st.integers(2, 9))
def test_lengths_that_do_not_divide_are_still_covered_once(length: int, size: int) -> None:
    """A violation must not lose channels: sizes shown beside it stay meaningful."""
    held = [share(Part("", length), size, rank) for rank in range(size)]
    assert [cell for s in held for cell in range(s.start, s.stop)] == list(range(length))


def test_head_groups_of_a_fused_tensor_stay_together() -> None:
    """GPT-NeoX: per head q, k, v of 2 rows each; rank 1 of 2 holds heads 2 and 3, rows 12 to 24."""
    spec = column(*(Part(role, 8, 2) for role in "qkv"), groups=4)
    assert runs(spec, 2, 1) == (Run(12, 24, 0),)


def test_shared_groups_are_cut_inside() -> None:
    """Falcon's new layout with 2 groups on 4 ranks: a group is 4 q heads, 1 k and 1 v; two ranks share a group,
    each with half of its q heads and the whole of its k and v. Head size 1."""
    spec = column(Part("q", 8, 1), Part("k", 2, 1, "kv"), Part("v", 2, 1, "kv"), groups=2)
    assert [list(cells(runs(spec, 4, rank))) for rank in range(4)] == [
        [0, 1, 4, 5],
        [2, 3, 4, 5],
        [6, 7, 10, 11],
        [8, 9, 10, 11],
    ]


def test_alternating_rows_are_cut_in_pairs() -> None:
    """gpt-oss: gate and up alternate row by row, so half of each is the first half of the rows."""
    spec = column(Part("gate", 6), Part("up", 6), groups=6)
    assert runs(spec, 2, 0) == (Run(0, 6, 0),)


@pytest.mark.parametrize(
    ("dim", "cut", "stored"),
    [
        (Dim("N", values=8), (64, 128), (8, 16)),  # AWQ: eight outputs in a word
        (Dim("K", values=32, items=3), (64, 96), (6, 9)),  # 3-bit GPTQ: 32 inputs in three words
        (Dim("K", values=256, items=144), (256, 512), (144, 288)),  # a Q4_K row
        (Dim("K", values=128), (128, 300), (1, 3)),  # the last group is short
    ],
)
def test_stored_elements_of_a_cut(dim: Dim, cut: tuple[int, int], stored: tuple[int, int]) -> None:
    assert stored_run(dim, *cut) == stored
