"""Families bound to tensors: what is missing, left over, misshapen, mixed or tied."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mlload import profiles
from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.tensor import TensorRef
from mlload.plan.fold import fold_names, fold_numbers
from mlload.plan.mesh import Mesh
from mlload.plan.model import Model, read_model
from mlload.plan.plan import make_plan
from tests.plan.tiny_models import DEEPSEEK, LLAMA, MIXTRAL, MODELS, TIED, model, tensors_of, with_tensors
from tests.skeletons import Skeleton


def codes(of: Model) -> list[tuple[str, str]]:
    return [(finding.code, finding.where) for finding in of.findings]


@pytest.mark.parametrize("name", MODELS)
def test_a_complete_checkpoint_has_no_findings(name: str, tmp_path: Path) -> None:
    expected = model(tmp_path, MODELS[name])
    found = with_tensors(expected, tensors_of(expected))
    assert found.findings == ()
    assert found.parameters_total == expected.parameters_total
    assert found.bytes_by_component == expected.bytes_by_component


def test_parameters_are_counted_as_the_model_card_does(tmp_path: Path) -> None:
    """vocabulary 2 x 100 x 64; a layer: q, o 2 x 64 x 64, k, v 2 x 16 x 64, MLP 3 x 96 x 64, norms 2 x 64; last 64."""
    layer = 2 * 64 * 64 + 2 * 16 * 64 + 3 * 96 * 64 + 2 * 64
    assert model(tmp_path / "a", LLAMA).parameters_total == 2 * 100 * 64 + 3 * layer + 64
    assert model(tmp_path / "b", TIED).parameters_total == 100 * 64 + 3 * layer + 64


def test_a_token_touches_two_of_six_experts(tmp_path: Path) -> None:
    of = model(tmp_path, MIXTRAL)
    experts = 3 * 6 * (3 * 96 * 64)
    assert of.parameters_total - of.parameters_active == experts * 4 // 6


def test_missing_tensors_are_folded_over_layers_and_experts(tmp_path: Path) -> None:
    of = model(tmp_path, MIXTRAL)
    tensors = {n: t for n, t in tensors_of(of).items() if not (".experts." in n and n.endswith("w2.weight"))}
    found = with_tensors(of, tensors)
    assert codes(found) == [("TN001", "model.layers.0-2.block_sparse_moe.experts.0-5.w2.weight (18 tensors)")]
    assert found.findings[0].numbers == {"count": 18}


def test_one_missing_expert_is_named(tmp_path: Path) -> None:
    of = model(tmp_path, MIXTRAL)
    tensors = tensors_of(of)
    del tensors["model.layers.1.block_sparse_moe.experts.4.w1.weight"]
    assert codes(with_tensors(of, tensors)) == [("TN001", "model.layers.1.block_sparse_moe.experts.4.w1.weight")]


def test_left_over_tensors_are_folded(tmp_path: Path) -> None:
    of = model(tmp_path, LLAMA)
    tensors = tensors_of(of)
    for layer in (7, 8):
        name = f"model.layers.{layer}.mlp.down_proj.weight"
        tensors[name] = TensorRef(name, "BF16", (64, 96), 0, 0, 64 * 96 * 2)
    found = with_tensors(of, tensors)
    assert codes(found) == [("TN007", "model.layers.7-8 (2 tensors)")]
    assert found.findings[0].numbers == {"layers": [7, 8], "declared": 3, "count": 2}


def test_a_width_edited_in_the_config_is_told_with_both_numbers(tmp_path: Path) -> None:
    """Cutting intermediate_size down to get a tensor-parallel size drops channels silently."""
    tensors = tensors_of(model(tmp_path / "true", LLAMA))
    edited = model(tmp_path / "edited", {**LLAMA, "intermediate_size": 88})
    found = with_tensors(edited, tensors)
    (finding,) = found.findings
    assert finding.code == "TN003" and finding.severity == "error" and finding.question == "right"
    assert finding.numbers == {
        "fields": ["intermediate_size"],
        "expected": 88,
        "actual": 96,
        "lost": 8,
        "count": 9,
        "modules": ["down_proj", "gate_proj", "up_proj"],
    }


def test_layers_of_another_dtype_are_a_part_of_their_own(tmp_path: Path) -> None:
    of = model(tmp_path, LLAMA)
    tensors = tensors_of(of)
    name = "model.layers.2.mlp.down_proj.weight"
    tensors[name] = tensors[name]._replace(dtype="F32", nbytes=64 * 96 * 4)
    found = with_tensors(of, tensors)
    parts = [p for p in found.params if p.spec.module.endswith("down_proj")]
    assert [(list(p.spec.layers or ()), p.stored[0].dtype, p.disk_bytes) for p in parts] == [
        ([0, 1], "BF16", 2 * 64 * 96 * 2),
        ([2], "F32", 64 * 96 * 4),
    ]


def test_one_expert_of_another_dtype_splits_its_layer(tmp_path: Path) -> None:
    of = model(tmp_path, MIXTRAL)
    tensors = tensors_of(of)
    name = "model.layers.1.block_sparse_moe.experts.3.w1.weight"
    tensors[name] = tensors[name]._replace(dtype="F32", nbytes=64 * 96 * 4)
    found = with_tensors(of, tensors)
    assert found.findings == ()
    assert sum(param.disk_bytes for param in found.params) == sum(tensor.nbytes for tensor in tensors.values())
    parts = [(p.expert_ids, list(p.spec.layers or ())) for p in found.params if p.spec.module.endswith("w1")]
    assert parts == [(None, [0, 2]), ((0, 1, 2, 4, 5), [1]), ((3,), [1])]
    plan = make_plan(found, profiles.load("vllm", "0.33"), Mesh(2, ep=True))
    for sizes in plan.ranks():
        assert sum(segment.nbytes for segment in plan.segments(sizes.rank)) == sizes.disk_bytes


def test_kv_cache_scales_belong_to_every_rank(tmp_path: Path) -> None:
    of = model(tmp_path, LLAMA)
    tensors = tensors_of(of)
    for layer in range(3):
        name = f"model.layers.{layer}.self_attn.k_scale"
        tensors[name] = TensorRef(name, "F32", (), 0, 0, 4)
    found = with_tensors(of, tensors)
    assert found.findings == ()
    plan = make_plan(found, profiles.load("vllm", "0.33"), Mesh(2))
    for rank in range(2):
        names = [s.tensor for s in plan.segments(rank) if s.tensor.endswith("k_scale")]
        assert names == [f"model.layers.{layer}.self_attn.k_scale" for layer in range(3)]


def test_a_tied_table_is_on_both_end_stages(tmp_path: Path) -> None:
    plan = make_plan(model(tmp_path, TIED), profiles.load("vllm", "0.33"), Mesh(pp=3))
    held = [any(s.tensor == "model.embed_tokens.weight" for s in plan.segments(rank)) for rank in range(3)]
    assert held == [True, False, True]
    table = 128 * 64 * 2  # padded to 128 rows
    ranks = plan.ranks()
    assert ranks[0].by_component["embedding"] == table
    assert "embedding" not in ranks[1].by_component
    assert ranks[2].by_component["embedding"] + ranks[2].by_component.get("head", 0) == table


def test_a_tied_table_costs_nothing_twice_on_one_stage(tmp_path: Path) -> None:
    plan = make_plan(model(tmp_path, TIED), profiles.load("vllm", "0.33"), Mesh())
    assert plan.ranks()[0].by_component["embedding"] == 128 * 64 * 2
    assert "head" not in plan.ranks()[0].by_component


def test_draft_layers_are_counted_apart(skeleton: Skeleton) -> None:
    """DeepSeek-V3's card: 671 B parameters and 14 B of the draft module; 37 B active."""
    of = read_model(Checkpoint.open(str(skeleton("deepseek-v3"))))
    assert round(of.parameters_total / 1e9) == 671
    assert round(of.parameters_active / 1e9) in (37, 38)
    assert 11e9 < of.parameters_draft < 14e9
    assert of.findings == ()
    plan = make_plan(of, profiles.load("vllm", "0.33"), Mesh(16))
    stored = sum(tensor.nbytes for tensor in of.checkpoint.tensors.values())
    whole = make_plan(of, profiles.load("vllm", "0.33"), Mesh()).ranks()[0]
    assert whole.disk_bytes + whole.draft_bytes == stored
    assert not any("model.layers.61." in segment.tensor for segment in plan.segments(3))


def test_ninety_thousand_tensors_are_bound_and_planned_at_once(skeleton: Skeleton) -> None:
    """Limits are several times what a slow core takes, to catch only a change of order; others' work does not count."""
    checkpoint = Checkpoint.open(str(skeleton("deepseek-v3")))
    assert len(checkpoint.tensors) > 90_000
    start = time.process_time()
    of = read_model(checkpoint)
    bound = time.process_time()
    make_plan(of, profiles.load("vllm", "0.33"), Mesh(16)).ranks()
    planned = time.process_time()
    assert bound - start < 2.0
    assert planned - bound < 0.4


def test_unknown_model_types_without_weights_are_a_sentence(tmp_path: Path) -> None:
    from mlload.checkpoint.finding import MlloadError

    with pytest.raises(MlloadError, match="not in the tables") as error:
        model(tmp_path, {"model_type": "nobody_knows", "hidden_size": 8})
    assert error.value.exit_code == 3


def test_deepseek_without_files_expects_what_it_would_hold(tmp_path: Path) -> None:
    of = model(tmp_path, DEEPSEEK)
    assert of.config_only
    assert of.parameters_active < of.parameters_total


def test_folding() -> None:
    assert fold_numbers([3, 0, 1, 2, 7, 9, 10]) == "0-3,7,9-10"
    assert fold_names(["a.0.b.1", "a.1.b.0", "c"]) == [("a.0-1.b.0-1", 2), ("c", 1)]
