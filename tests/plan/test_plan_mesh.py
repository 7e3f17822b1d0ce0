"""Ranks, pipeline stages and the placement of experts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlload.plan.mesh import Mesh, experts_of
from mlload.plan.stages import stage_layers, stage_sizes


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [
        (32, 4, (8, 8, 8, 8)),
        (61, 4, (15, 15, 16, 15)),  # the spare layer goes to the last stage but one
        (80, 3, (27, 27, 26)),
        (30, 4, (7, 8, 8, 7)),
        (28, 3, (9, 10, 9)),
        (32, 50, (0,) * 17 + (1,) * 32 + (0,)),
    ],
)
def test_spare_layers_go_to_the_later_middle_stages(layers: int, stages: int, expected: tuple[int, ...]) -> None:
    assert stage_sizes(layers, stages) == expected


def test_an_explicit_partition_wins_where_it_fits() -> None:
    assert stage_sizes(61, 4, (15, 15, 15, 16)) == (15, 15, 15, 16)
    assert stage_sizes(61, 4, (15, 15, 15)) == (15, 15, 16, 15)


@given(st.integers(1, 200), st.integers(1, 64))
def test_stages_hold_every_layer_once(layers: int, stages: int) -> None:
    mesh = Mesh(pp=stages)
    held = [layer for stage in range(stages) for layer in stage_layers(layers, mesh, stage)]
    assert held == list(range(layers))


@given(st.integers(1, 300), st.integers(1, 64))
def test_ranks_hold_every_expert_once_and_the_first_hold_one_more(experts: int, size: int) -> None:
    held = [experts_of(experts, size, rank) for rank in range(size)]
    assert [expert for mine in held for expert in mine] == list(range(experts))
    counts = [len(mine) for mine in held]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] - counts[-1] <= 1


def test_ranks_are_numbered_stage_by_stage() -> None:
    mesh = Mesh(tp=4, pp=2)
    assert [(mesh.pp_rank(rank), mesh.tp_rank(rank)) for rank in (0, 3, 4, 7)] == [(0, 0), (0, 3), (1, 0), (1, 3)]
    assert list(mesh.ranks) == list(range(8))
