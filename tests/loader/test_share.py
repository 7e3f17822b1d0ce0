"""Ranks of one machine: who reads what for all, that every run is placed once, and that no byte is read in vain."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlload.loader import get_model_loader, reader
from mlload.loader.reads import Read
from mlload.loader.share import ALONE, Share, between, share_of
from mlload.plan.mesh import Mesh
from tests.loader.files import empty_destinations, planned, raw, write_random
from tests.loader.test_mapped import LLAMA


def rows(first: int, count: int, name: str = "w") -> Read:
    """Whole rows of a [1000, 100] tensor of bytes."""
    return Read(name, "f", 0, (1000, 100), ((first, first + count), (0, 100)), "U8", ((0, count), (0, 100)))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("runs", [0, 1, 5, 13])
@pytest.mark.parametrize("ahead", [1, 2, 8, 50])
def test_every_run_once_and_own_ones_first(ranks: int, runs: int, ahead: int) -> None:
    for rank in range(ranks):
        share = Share(rank, ranks)
        order = list(share.in_turns(runs, ahead))
        assert sorted(order) == list(range(runs))
        own = [run for run in order if share.reads(run)]
        assert own == list(range(rank, runs, ranks))
        if ranks > 1:
            assert order[: min(ahead, len(own))] == own[:ahead]
    assert all(sum(Share(rank, ranks).reads(run) for rank in range(ranks)) == 1 for run in range(runs))


def test_what_lies_between_is_read_where_other_ranks_need_it() -> None:
    assert between([rows(0, 10), rows(10, 10)], 4) is None  # nothing between
    assert between([rows(0, 10), rows(40, 10)], 4) == (0, 5000)  # three other ranks' rows
    assert between([rows(0, 10), rows(900, 10)], 4) is None  # something else, that nobody may need
    columns = Read("w", "f", 0, (1000, 100), ((0, 1000), (25, 50)), "U8", ((0, 1000), (0, 25)))
    assert between([columns], 4) == (25, 99_925)


def test_ranks_of_other_machines_fill_another_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_random(tmp_path, LLAMA)
    plan = planned(tmp_path, Mesh(4))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert share_of(plan, 3) == Share(3, 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert share_of(plan, 3) == Share(3, 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert share_of(plan, 3) == ALONE
    stages = planned(tmp_path, Mesh(2, 2))
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert [share_of(stages, rank) for rank in range(4)] == [Share(0, 2), Share(1, 2)] * 2


@pytest.mark.parametrize("limit", [600, 5000])
def test_short_runs_in_turns_hold_the_bytes(limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many runs for each rank, whatever its turn: the values of a row-parallel cut come out of the mapped file."""
    monkeypatch.setattr(reader, "RUN", limit * 2)
    data = write_random(tmp_path, LLAMA, aligned=True)
    plan = planned(tmp_path, Mesh(2))
    for rank in range(2):
        places = empty_destinations(plan, rank)
        loaded = get_model_loader("safetensors").load(plan, rank, places)
        assert loaded.bytes_read == plan.ranks()[rank].disk_bytes
        for name, place in places.items():
            kept = bytes(data[name])
            if "o_proj" in name or "down_proj" in name:
                width = len(kept) // 32
                half = width // 2
                want = b"".join(kept[row * width + rank * half : row * width + (rank + 1) * half] for row in range(32))
            elif "norm" in name:
                want = kept
            else:
                want = kept[rank * len(kept) // 2 : (rank + 1) * len(kept) // 2]
            assert raw(place.param.data) == want, name
