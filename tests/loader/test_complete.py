"""A load that is not whole fails and names what is missing, unexpected, or there twice."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from mlload.checkpoint.finding import MlloadError
from mlload.loader import BaseModelLoader, RankTensor, get_model_loader, load_formats, registry
from mlload.loader.base import Destinations
from mlload.plan.mesh import Mesh
from mlload.plan.plan import Plan
from tests.loader.files import empty_destinations, planned, write_random
from tests.plan.tiny_models import LLAMA

NAME = "model.layers.2.mlp.up_proj.weight"


class Given(BaseModelLoader):
    """Yields what it is given."""

    def __init__(self, *pieces: RankTensor) -> None:
        self.pieces = pieces

    def tensors(self, plan: Plan, rank: int, destinations: Destinations) -> Iterator[RankTensor]:
        yield from self.pieces


def piece(name: str, rows: int, start: int = 0) -> RankTensor:
    return RankTensor(name, ((start, start + rows), (0, 64)), torch.ones(rows, 64))


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    write_random(tmp_path, LLAMA)
    return planned(tmp_path, Mesh())


def message(plan: Plan, *pieces: RankTensor, only: str = NAME) -> str:
    destinations = {only: empty_destinations(plan, 0)[only]}
    with pytest.raises(MlloadError) as caught:
        Given(*pieces).load(plan, 0, destinations)
    assert caught.value.exit_code == 1
    return caught.value.message


def test_missing(plan: Plan) -> None:
    assert message(plan) == f"rank 0: 1 tensor missing: {NAME}"


def test_filled_only_in_part(plan: Plan) -> None:
    assert message(plan, piece(NAME, 40)) == f"rank 0: 1 tensor filled only in part: {NAME}"


def test_filled_twice(plan: Plan) -> None:
    assert message(plan, piece(NAME, 96), piece(NAME, 96)) == f"rank 0: 1 tensor filled twice: {NAME}"


def test_overlapping_pieces(plan: Plan) -> None:
    assert message(plan, piece(NAME, 96), piece(NAME, 6, 90)) == f"rank 0: 1 tensor filled twice: {NAME}"


def test_unexpected(plan: Plan) -> None:
    found = message(plan, piece(NAME, 96), piece("model.layers.7.extra", 1))
    assert found == "rank 0: 1 tensor not expected by the model: model.layers.7.extra"


def test_a_checkpoint_without_one_tensor_names_it(tmp_path: Path) -> None:
    write_random(tmp_path, LLAMA)
    plan = planned(tmp_path, Mesh())
    destinations = empty_destinations(plan, 0)
    del plan.model.checkpoint.tensors[NAME]
    with pytest.raises(MlloadError, match=r"1 tensor missing: model\.layers\.2\.mlp\.up_proj\.weight"):
        get_model_loader("safetensors").load(plan, 0, destinations)


def test_a_file_that_was_cut_short_since(tmp_path: Path) -> None:
    write_random(tmp_path, LLAMA)
    plan = planned(tmp_path, Mesh())
    path = tmp_path / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(MlloadError, match=r"model-00001-of-00002\.safetensors ends inside"):
        get_model_loader("safetensors").load(plan, 0, empty_destinations(plan, 0))


def test_dummy_fills_everything_and_reads_nothing(plan: Plan) -> None:
    destinations = empty_destinations(plan, 0)
    loaded = get_model_loader("dummy").load(plan, 0, destinations)
    assert loaded.bytes_read == 0 and loaded.tensors == len(destinations)
    weight = destinations[NAME].param
    assert 0 < weight.float().abs().max() <= 1e-3 + 1e-5


def test_unknown_formats_list_those_there_are() -> None:
    with pytest.raises(MlloadError, match="no loader for load_format 'tarball'; there are auto, safetensors, pt"):
        get_model_loader("tarball")


def test_registering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    registry.register_model_loader("given")(Given)
    assert isinstance(get_model_loader("given"), Given) and "given" in load_formats()
    with pytest.raises(ValueError, match="has a loader already"):
        registry.register_model_loader("safetensors")(Given)


def test_entry_points_are_asked_for_unknown_names(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("outside", "tests.loader.test_complete:Given", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == registry.GROUP else [])
    assert isinstance(get_model_loader("outside"), Given) and "outside" in load_formats()
    assert not isinstance(get_model_loader("safetensors"), Given)
