"""Which parameters become views of their file, that nothing of it changes, and that the rest is read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from mlload.checkpoint.finding import MlloadError
from mlload.loader import get_model_loader, mapped
from mlload.loader.destination import Destination
from mlload.loader.reads import Read
from mlload.plan.mesh import Mesh
from mlload.plan.segments import Box
from tests.loader.files import empty_destinations, planned, raw, write_random

LLAMA = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def filled(folder: Path, tp: int, rank: int) -> tuple[dict[str, Destination], dict[str, int]]:
    """Destinations after a load, and where each parameter's memory was before."""
    plan = planned(folder, Mesh(tp))
    places = empty_destinations(plan, rank)
    before = {name: place.param.data_ptr() for name, place in places.items()}
    get_model_loader("safetensors").load(plan, rank, places)
    return places, before


def test_whole_tensors_are_views_and_hold_the_bytes(tmp_path: Path) -> None:
    data = write_random(tmp_path, LLAMA, aligned=True)
    places, before = filled(tmp_path, 1, 0)
    for name, place in places.items():
        assert raw(place.param.data) == data[name]
        assert place.param.data_ptr() != before[name], name
        assert place.param.untyped_storage().nbytes() == len(data[name])


def test_only_row_parallel_cuts_are_copied(tmp_path: Path) -> None:
    data = write_random(tmp_path, LLAMA, aligned=True)
    for rank in range(2):
        places, before = filled(tmp_path, 2, rank)
        for name, place in places.items():
            whole = torch.frombuffer(bytearray(data[name]), dtype=torch.bfloat16)
            row = "o_proj" in name or "down_proj" in name
            assert (place.param.data_ptr() == before[name]) == row, name
            if row:
                n = 32
                want = whole.reshape(n, -1).chunk(2, 1)[rank]
            elif "norm" in name:
                want = whole
            else:
                want = whole.reshape(-1, 32).chunk(2)[rank]
            assert raw(place.param.data) == raw(want)


def test_what_is_written_to_a_parameter_stays_out_of_the_file(tmp_path: Path) -> None:
    write_random(tmp_path, LLAMA, aligned=True)
    files = {path: path.read_bytes() for path in tmp_path.glob("*.safetensors")}
    places, _ = filled(tmp_path, 1, 0)
    for place in places.values():
        place.param.data.fill_(1)
    assert all(path.read_bytes() == content for path, content in files.items())
    again, _ = filled(tmp_path, 1, 0)
    assert not all(bool((place.param.data == 1).all()) for place in again.values())


def test_fixed_cast_and_loaded_parameters_keep_their_memory(tmp_path: Path) -> None:
    write_random(tmp_path, LLAMA, aligned=True)
    plan = planned(tmp_path, Mesh(1))
    places = empty_destinations(plan, 0)
    fixed, loaded, cast = "model.norm.weight", "lm_head.weight", "model.embed_tokens.weight"
    places[fixed].fixed = True
    places[loaded].param.weight_loader = lambda param, part, piece: part.copy_(piece)  # type: ignore[attr-defined]
    wide = nn.Parameter(torch.zeros(64, 32), requires_grad=False)
    places[cast] = Destination(wide, (64, 32))
    before = {name: places[name].param.data_ptr() for name in (fixed, loaded, cast)}
    get_model_loader("safetensors").load(plan, 0, places)
    for name, where in before.items():
        assert places[name].param.data_ptr() == where
        assert bool(places[name].param.data.isfinite().any())


def test_a_network_mount_is_read_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_random(tmp_path, LLAMA, aligned=True)
    kinds = dict.fromkeys(mapped._systems(), "nfs4")
    monkeypatch.setattr(mapped, "_systems", lambda: kinds)
    assert mapped.on_network(str(tmp_path))
    places, before = filled(tmp_path, 1, 0)
    for name, place in places.items():
        assert place.param.data_ptr() == before[name]
        assert raw(place.param.data) == data[name]


def test_without_populate_the_pages_are_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_random(tmp_path, LLAMA, aligned=True)
    monkeypatch.setattr(mapped, "_madvise", lambda *_: -1)
    places, _ = filled(tmp_path, 1, 0)
    assert all(raw(place.param.data) == data[name] for name, place in places.items())


def test_tensors_at_odd_offsets_are_read(tmp_path: Path) -> None:
    data = write_random(tmp_path, LLAMA)
    places, before = filled(tmp_path, 1, 0)
    assert all(raw(place.param.data) == data[name] for name, place in places.items())
    for name, ref in planned(tmp_path, Mesh(1)).model.checkpoint.tensors.items():
        assert (places[name].param.data_ptr() == before[name]) == bool(ref.offset % 2)


def test_a_file_that_was_cut_short_meanwhile_is_a_sentence(tmp_path: Path) -> None:
    write_random(tmp_path, LLAMA, aligned=True)
    plan = planned(tmp_path, Mesh(1))
    places = empty_destinations(plan, 0)
    file = next(tmp_path.glob("*.safetensors"))
    with open(file, "r+b") as handle:
        handle.truncate(file.stat().st_size - 100)
    with pytest.raises(MlloadError, match=r"ends inside|changed while"):
        get_model_loader("safetensors").load(plan, 0, places)


ROWS, HALF = ((0, 4), (0, 3)), ((0, 2), (0, 3))
REST = ((2, 4), (0, 3))


def read(stored: tuple[int, int], box: Box, to: Box) -> Read:
    """Of a matrix at the beginning of a file; its rows and the box count bytes, `to` elements of two bytes."""
    return Read("w", "file", 0, stored, box, "BF16", to)


@pytest.mark.parametrize(
    ("shape", "reads", "start"),
    [
        pytest.param((4, 3), [read((8, 6), ((2, 6), (0, 6)), ROWS)], 12, id="a run of rows"),
        pytest.param((4, 3), [read((4, 12), ((0, 4), (6, 12)), ROWS)], None, id="columns"),
        pytest.param((1, 3), [read((4, 12), ((2, 3), (6, 12)), ((0, 1), (0, 3)))], 30, id="part of one row"),
        pytest.param(
            (4, 3), [read((8, 6), ((0, 2), (0, 6)), HALF), read((8, 6), ((2, 4), (0, 6)), REST)], 0, id="pieces"
        ),
        pytest.param(
            (4, 3), [read((8, 6), ((0, 2), (0, 6)), REST), read((8, 6), ((2, 4), (0, 6)), HALF)], None, id="swapped"
        ),
        pytest.param(
            (4, 3), [read((8, 6), ((0, 2), (0, 6)), HALF), read((8, 6), ((4, 6), (0, 6)), REST)], None, id="a gap"
        ),
        pytest.param((4, 3), [read((8, 6), ((0, 2), (0, 6)), HALF)], None, id="the first half alone"),
    ],
)
def test_one_run(shape: tuple[int, ...], reads: list[Read], start: int | None) -> None:
    assert mapped.one_run(reads, shape) == start
