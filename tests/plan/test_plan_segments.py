"""Segments carried out on arrays: what the ranks hold puts the model together again, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlload import profiles
from mlload.checkpoint.tensor import DTYPE_BITS
from mlload.plan.architectures.gguf import as_gguf
from mlload.plan.mesh import Mesh
from mlload.plan.model import Model
from mlload.plan.plan import Plan, make_plan
from mlload.plan.segments import Box
from tests.plan.tiny_models import LLAMA, MIXTRAL, MODELS, model

Arrays = dict[str, "np.ndarray[Any, Any]"]

MESHES = [
    Mesh(),
    Mesh(2),
    Mesh(4),
    Mesh(8),
    Mesh(2, 2),
    Mesh(1, 3),
    Mesh(4, ep=True),
    Mesh(2, 2, ep=True),
]


def plan_of(of: Model, mesh: Mesh) -> Plan:
    return make_plan(of, profiles.load("vllm", "0.33"), mesh)


def whole(of: Model) -> Arrays:
    """Every tensor that the model has, with bytes that no other has."""
    rng = np.random.default_rng(0)
    found: Arrays = {}
    for param in of.params:
        if param.spec.draft:
            continue
        for path in param.modules():
            for tensor in param.stored:
                # Four bits a value still count as one cell here; nbytes are checked apart.
                found[path + tensor.suffix] = rng.integers(0, 1 << 30, tensor.shape, dtype=np.int64)
    return found


def cells(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)


def ranks_of(plan: Plan, source: Arrays) -> list[Arrays]:
    """Each rank's own tensors, filled by its segments."""
    held: list[Arrays] = []
    for rank in plan.mesh.ranks:
        mine: Arrays = {}
        for segment in plan.segments(rank):
            target = mine.setdefault(segment.tensor, np.full(segment.shape, -1, dtype=np.int64))
            target[cells(segment.to)] = source[segment.tensor][cells(segment.box)]
        assert all((array >= 0).all() for array in mine.values()), "a rank's tensor has holes"
        held.append(mine)
    return held


@pytest.mark.parametrize("mesh", MESHES, ids=Mesh.label)
@pytest.mark.parametrize("name", MODELS)
def test_the_ranks_put_the_model_together_again(name: str, mesh: Mesh, tmp_path: Path) -> None:
    plan = plan_of(model(tmp_path, MODELS[name]), mesh)
    source = whole(plan.model)
    held = ranks_of(plan, source)
    again = {tensor: np.full_like(array, -1) for tensor, array in source.items()}
    for rank in mesh.ranks:
        for segment in plan.segments(rank):
            again[segment.tensor][cells(segment.box)] = held[rank][segment.tensor][cells(segment.to)]
    for tensor, array in source.items():
        assert np.array_equal(again[tensor], array), tensor


@pytest.mark.parametrize("mesh", MESHES, ids=Mesh.label)
@pytest.mark.parametrize("name", MODELS)
def test_segments_weigh_what_the_sizes_say(name: str, mesh: Mesh, tmp_path: Path) -> None:
    plan = plan_of(model(tmp_path, MODELS[name]), mesh)
    for sizes in plan.ranks():
        assert sum(segment.nbytes for segment in plan.segments(sizes.rank)) == sizes.disk_bytes
        assert sum(sizes.disk_by_component.values()) == sizes.disk_bytes


@pytest.mark.parametrize("quant", ["awq:g32", "gptq:g32", "fp8", "fp8:block32", "w8a8", "mxfp4", "nvfp4"])
@pytest.mark.parametrize("mesh", [Mesh(), Mesh(2), Mesh(2, 3)], ids=Mesh.label)
def test_quantized_tensors_are_cut_with_their_scales(quant: str, mesh: Mesh, tmp_path: Path) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 8, "head_dim": 32}
    plan = plan_of(model(tmp_path, {**LLAMA, **sizes}, assume_quant=quant), mesh)
    assert not plan.violations
    source = whole(plan.model)
    assert any(param.scheme is not None for param in plan.model.params)
    again = {tensor: np.full_like(array, -1) for tensor, array in source.items()}
    for rank, held in enumerate(ranks_of(plan, source)):
        total = 0
        for segment in plan.segments(rank):
            total += segment.nbytes
            again[segment.tensor][cells(segment.box)] = held[segment.tensor][cells(segment.to)]
        assert total == plan.ranks()[rank].disk_bytes
    for tensor, array in source.items():
        assert np.array_equal(again[tensor], array), tensor


def test_every_byte_is_read_by_one_rank_where_nothing_is_shared(tmp_path: Path) -> None:
    """tp 2 of a model with 2 KV heads: norms are held twice, everything else once."""
    plan = plan_of(model(tmp_path, LLAMA), Mesh(2))
    norms = sum(param.disk_bytes for param in plan.model.params if param.component == "norm")
    total = sum(param.disk_bytes for param in plan.model.params)
    assert sum(sizes.disk_bytes for sizes in plan.ranks()) == total + norms


def test_a_shared_kv_head_is_the_whole_head_on_each_of_its_ranks(tmp_path: Path) -> None:
    """2 KV heads of 8 rows on 4 ranks: ranks 0 and 1 hold head 0, ranks 2 and 3 head 1."""
    plan = plan_of(model(tmp_path, LLAMA), Mesh(4))
    boxes = [
        segment.box
        for rank in range(4)
        for segment in plan.segments(rank)
        if segment.tensor == "model.layers.0.self_attn.k_proj.weight"
    ]
    assert boxes == [((0, 8), (0, 64)), ((0, 8), (0, 64)), ((8, 16), (0, 64)), ((8, 16), (0, 64))]


def test_each_part_of_a_fused_tensor_is_cut_by_itself(tmp_path: Path) -> None:
    """phi3 stores [q; k; v] and [gate; up]: rank 1 of 2 holds the second half of each, packed without holes."""
    plan = plan_of(model(tmp_path, MODELS["phi3"]), Mesh(2))
    found = {
        (segment.tensor.rpartition("layers.0.")[2], segment.role): (segment.box[0], segment.to[0])
        for segment in plan.segments(1)
        if ".layers.0." in segment.tensor and segment.role
    }
    assert found == {
        ("self_attn.qkv_proj.weight", "q"): ((32, 64), (0, 32)),
        ("self_attn.qkv_proj.weight", "k"): ((80, 96), (32, 48)),
        ("self_attn.qkv_proj.weight", "v"): ((112, 128), (48, 64)),
        ("mlp.gate_up_proj.weight", "gate"): ((48, 96), (0, 48)),
        ("mlp.gate_up_proj.weight", "up"): ((144, 192), (48, 96)),
    }


def test_expert_parallelism_deals_whole_experts(tmp_path: Path) -> None:
    """6 experts on 4 ranks: 2, 2, 1, 1."""
    plan = plan_of(model(tmp_path, MIXTRAL), Mesh(4, ep=True))
    held = []
    for rank in range(4):
        names = {s.tensor for s in plan.segments(rank) if "layers.0.block_sparse_moe.experts" in s.tensor}
        held.append(sorted({int(name.split("experts.")[1].split(".")[0]) for name in names}))
        assert all(
            s.shape == ((64, 96) if ".w2." in s.tensor else (96, 64))
            for s in plan.segments(rank)
            if ".experts." in s.tensor
        )
    assert held == [[0, 1], [2, 3], [4], [5]]


def test_draft_layers_are_apart(tmp_path: Path) -> None:
    plan = plan_of(model(tmp_path, MODELS["deepseek"]), Mesh(2))
    sizes = plan.ranks()[0]
    drafted = [s for s in plan.segments(0, draft=True) if s.tensor.startswith("model.layers.3.")]
    assert not [s for s in plan.segments(0) if s.tensor.startswith("model.layers.3.")]
    assert sum(s.nbytes for s in drafted) == sizes.draft_bytes
    assert sizes.draft_bytes == 0 or "draft" not in sizes.by_component


def test_rows_of_gguf_heads_say_that_they_are_paired(tmp_path: Path) -> None:
    """llama's q and k alone; a slice of whole heads can be undone on its rank."""
    of = model(tmp_path, LLAMA)
    architecture = as_gguf(of.architecture)
    marked = {spec.module: spec.transforms for spec in architecture.params(of.config) if spec.transforms}
    assert marked == {
        "blk.{layer}.attn_q": ("unpair_rope:8",),
        "blk.{layer}.attn_k": ("unpair_rope:8",),
    }
    assert not any(segment.transforms for segment in plan_of(of, Mesh(2)).segments(0))


def test_bytes_of_a_segment_follow_the_dtype(tmp_path: Path) -> None:
    plan = plan_of(model(tmp_path, LLAMA), Mesh(2))
    for segment in plan.segments(0):
        count = int(np.prod([stop - start for start, stop in segment.box]))
        assert segment.nbytes == count * DTYPE_BITS["BF16"] // 8
