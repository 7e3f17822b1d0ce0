"""What the ranks loaded, put together, is the checkpoint, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mlload.checkpoint.tensor import DTYPE_BITS
from mlload.loader import get_model_loader
from mlload.loader import reader as reader_module
from mlload.plan.mesh import Mesh
from mlload.plan.plan import Plan
from mlload.quant.formats.tensors import stored_shape
from tests.loader.files import empty_destinations, planned, raw, write_random
from tests.loader.formats import BLOCK_TYPES, NAMES, write_gguf, write_gpt_oss, write_packed
from tests.plan.tiny_models import LLAMA, MODELS

WIDE = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 8, "head_dim": 32}


def together(plan: Plan, held: list[dict[str, bytes]]) -> dict[str, bytes]:
    """The whole tensors from every rank's own, as the segments say."""
    tensors = plan.model.checkpoint.tensors
    whole: dict[str, np.ndarray[Any, Any]] = {}
    for rank in plan.mesh.ranks:
        for segment in plan.segments(rank):
            ref = tensors[segment.tensor]
            item = DTYPE_BITS.get(ref.dtype, 8) // 8
            shape = (*stored_shape(ref), item)
            array = whole.setdefault(segment.tensor, np.zeros(shape, dtype=np.uint8))
            own = shape[:-1] if len(segment.shape) != len(ref.shape) else segment.shape
            if len(own) != len(segment.box):
                array[...] = np.frombuffer(held[rank][segment.tensor], dtype=np.uint8).reshape(shape)
                continue
            mine = np.frombuffer(held[rank][segment.tensor], dtype=np.uint8).reshape(*own, item)
            array[tuple(slice(*run) for run in segment.box)] = mine[tuple(slice(*run) for run in segment.to)]
    return {name: array.tobytes() for name, array in whole.items()}


def check(folder: Path, config: dict[str, Any], mesh: Mesh, quant: str | None = None) -> None:
    data = write_random(folder, config, quant)
    again = loaded_together(planned(folder, mesh, quant))
    assert again.keys() <= data.keys() and len(again) > 10
    for name, content in again.items():
        assert content == data[name], name


def loaded_together(plan: Plan) -> dict[str, bytes]:
    """What all ranks loaded, put together; each rank's tensors have the plan's bytes."""
    mesh = plan.mesh
    held = []
    for rank in mesh.ranks:
        destinations = empty_destinations(plan, rank)
        loaded = get_model_loader("auto").load(plan, rank, destinations)
        assert loaded.tensors == len(destinations)
        assert loaded.bytes_read >= plan.ranks()[rank].disk_bytes
        held.append({name: raw(destination.param) for name, destination in destinations.items()})
        # The plan counts one byte of a text (bitsandbytes' quant_state), whatever its length.
        texts = sum(len(content) - 1 for name, content in held[-1].items() if ".quant_state." in name)
        assert sum(map(len, held[-1].values())) - texts == plan.ranks()[rank].disk_bytes
    return together(plan, held)


@pytest.mark.parametrize("mesh", [Mesh(), Mesh(2), Mesh(4), Mesh(2, 2), Mesh(2, ep=True)], ids=Mesh.label)
@pytest.mark.parametrize("name", MODELS)
def test_ranks_hold_the_checkpoint(name: str, mesh: Mesh, tmp_path: Path) -> None:
    check(tmp_path, MODELS[name], mesh)


@pytest.mark.parametrize("quant", ["awq:g32", "gptq:g32", "fp8", "fp8:block32", "w8a8", "mxfp4", "nvfp4"])
@pytest.mark.parametrize("mesh", [Mesh(), Mesh(2)], ids=Mesh.label)
def test_quantized_ranks_hold_the_checkpoint(quant: str, mesh: Mesh, tmp_path: Path) -> None:
    check(tmp_path, {**LLAMA, **WIDE}, mesh, quant)


@pytest.mark.parametrize("tp", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("name", NAMES)
def test_every_format_in_its_own_bytes(name: str, tp: int, tmp_path: Path) -> None:
    data = write_packed(tmp_path, name)
    plan = planned(tmp_path, Mesh(tp))
    assert not plan.violations and not [one for one in plan.model.findings if one.severity == "error"]
    assert loaded_together(plan) == data


@pytest.mark.parametrize("mesh", [Mesh(), Mesh(2), Mesh(2, ep=True)], ids=Mesh.label)
def test_stacked_blocks_of_experts(mesh: Mesh, tmp_path: Path) -> None:
    data = write_gpt_oss(tmp_path)
    assert loaded_together(planned(tmp_path, mesh)) == data


@pytest.mark.parametrize("tp", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_every_block_type_of_gguf(kind: str, tp: int, tmp_path: Path) -> None:
    data = write_gguf(tmp_path, kind)
    assert loaded_together(planned(tmp_path / "model.gguf", Mesh(tp))) == data


@pytest.mark.parametrize("gap", [0, 1 << 30], ids=["run by run", "whole rows"])
def test_both_ways_to_read_columns(gap: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "GAP", gap)
    monkeypatch.setattr(reader_module, "SPAN", 1000)
    check(tmp_path, {**LLAMA, **WIDE}, Mesh(4))


def test_run_by_run_reads_what_the_plan_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "GAP", 0)
    write_random(tmp_path, {**LLAMA, **WIDE})
    plan = planned(tmp_path, Mesh(2))
    for rank in range(2):
        loaded = get_model_loader("safetensors").load(plan, rank, empty_destinations(plan, rank))
        assert loaded.bytes_read == plan.ranks()[rank].disk_bytes


def test_pieces_of_large_tensors_come_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlload.loader import reads

    monkeypatch.setattr(reads.pieces, "__defaults__", (1000,))
    monkeypatch.setattr(reader_module, "PIECE", 1000)
    check(tmp_path, {**LLAMA, **WIDE}, Mesh(2))


def test_another_dtype_passes_through_the_weight_loader(tmp_path: Path) -> None:
    """bf16 bits in a float32 are the upper half of its bits."""
    data = write_random(tmp_path, LLAMA)
    plan = planned(tmp_path, Mesh())
    destinations = empty_destinations(plan, 0, torch.float32)
    calls: list[int] = []

    def weight_loader(param: torch.nn.Parameter, part: torch.Tensor, piece: torch.Tensor) -> None:
        calls.append(piece.numel())
        part.copy_(piece.reshape(part.shape))

    name = "model.layers.1.mlp.down_proj.weight"
    destinations[name].param.weight_loader = weight_loader  # type: ignore[attr-defined]
    get_model_loader("safetensors").load(plan, 0, destinations)
    bits = np.frombuffer(data[name], dtype=np.uint16).astype(np.uint32) << 16
    assert np.array_equal(destinations[name].param.view(torch.int32).numpy().reshape(-1).view(np.uint32), bits)
    assert sum(calls) == 64 * 96
