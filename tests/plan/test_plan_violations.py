"""Rules on sizes: moving one size across its divisor flips exactly the rule named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlload import profiles
from mlload.checkpoint.tensor import TensorRef
from mlload.plan.codes import CODES
from mlload.plan.dtype import resolve_dtype
from mlload.plan.left_over import unexpected
from mlload.plan.mesh import Mesh
from mlload.plan.plan import Plan, make_plan, sizes_that_work
from tests.plan.tiny_models import DEEPSEEK, GPT_OSS, LLAMA, MIXTRAL, model

WIDE = {**LLAMA, "hidden_size": 1024, "head_dim": 128, "intermediate_size": 2048}


def plan(folder: Path, config: dict[str, Any], mesh: Mesh, quant: str | None = None, **asked: Any) -> Plan:
    return make_plan(model(folder, config, assume_quant=quant), profiles.load("vllm", "0.33"), mesh, **asked)


def codes(of: Plan) -> list[str]:
    return sorted({finding.code for finding in of.violations})


@pytest.mark.parametrize(
    ("config", "mesh", "quant", "expected"),
    [
        (LLAMA, Mesh(2), None, []),
        (LLAMA, Mesh(3), None, ["TP001", "TP002", "TP005"]),
        ({**LLAMA, "num_attention_heads": 9, "num_key_value_heads": 3}, Mesh(3), None, ["TP005"]),
        ({**LLAMA, "vocab_size": 192, "num_attention_heads": 9, "num_key_value_heads": 3}, Mesh(3), None, []),
        ({**LLAMA, "num_key_value_heads": 3, "num_attention_heads": 12}, Mesh(2), None, ["TP002"]),
        ({**LLAMA, "intermediate_size": 98}, Mesh(4), None, ["TP003", "TP004"]),
        (MIXTRAL, Mesh(8), None, []),
        ({**MIXTRAL, "intermediate_size": 100}, Mesh(8), None, ["TP006"]),
        ({**MIXTRAL, "intermediate_size": 100}, Mesh(8, ep=True), None, []),
        (LLAMA, Mesh(2, ep=True), None, ["TP015"]),
        ({**DEEPSEEK, "moe_intermediate_size": 36}, Mesh(8), None, ["TP006", "TP007"]),
        ({**DEEPSEEK, "moe_intermediate_size": 36}, Mesh(8, ep=True), None, ["TP007"]),
        (GPT_OSS, Mesh(2), None, []),
        (GPT_OSS, Mesh(4), None, ["TP016"]),
        (MIXTRAL, Mesh(pp=3), None, []),
        (MIXTRAL, Mesh(pp=5), None, ["TP013", "TP018"]),
        (LLAMA, Mesh(pp=5), None, ["TP018"]),
        (LLAMA, Mesh(pp=2, partition=(1, 1)), None, ["TP011"]),
        (LLAMA, Mesh(pp=2, partition=(1, 2)), None, []),
        (WIDE, Mesh(8), "awq:g128", []),
        ({**WIDE, "intermediate_size": 1792}, Mesh(8), "awq:g128", ["TP021"]),
        ({**WIDE, "intermediate_size": 1792}, Mesh(8), "awq:g32", []),
        ({**WIDE, "intermediate_size": 1792}, Mesh(8), "gptq:g128", ["TP021"]),
        ({**WIDE, "intermediate_size": 1792}, Mesh(2), "gptq:g128", []),
        ({**WIDE, "intermediate_size": 1792}, Mesh(8), "w4a16:g128", ["TP021"]),
        ({**WIDE, "intermediate_size": 1792}, Mesh(8), "fp8", []),
        ({**WIDE, "intermediate_size": 1792}, Mesh(8), "w8a8", []),
        ({**WIDE, "intermediate_size": 1792}, Mesh(8), "fp8:block128", ["TP023"]),
        ({**WIDE, "intermediate_size": 1072}, Mesh(8), "nvfp4", ["TP024"]),
        ({**WIDE, "intermediate_size": 1088}, Mesh(4), "nvfp4", []),
    ],
)
def test_rules_flip_at_their_divisors(
    config: dict[str, Any], mesh: Mesh, quant: str | None, expected: list[str], tmp_path: Path
) -> None:
    assert codes(plan(tmp_path, config, mesh, quant)) == expected


def test_every_code_has_a_text(tmp_path: Path) -> None:
    assert all(title and text.endswith(".") for title, text in CODES.values())
    assert set(codes(plan(tmp_path, LLAMA, Mesh(3)))) <= set(CODES)


@pytest.mark.parametrize("quant", [None, "awq:g128", "gptq:g128", "fp8:block128"])
@pytest.mark.parametrize("tp", [2, 3, 8])
def test_twice_the_layers_break_the_same_rules(tp: int, quant: str | None, tmp_path: Path) -> None:
    config = {**WIDE, "intermediate_size": 1792}
    once = plan(tmp_path / "a", config, Mesh(tp), quant)
    twice = plan(tmp_path / "b", {**config, "num_hidden_layers": 6}, Mesh(tp), quant)
    assert [f.code for f in once.violations] == [f.code for f in twice.violations]


def test_gptq_starts_and_is_wrong_where_awq_is_refused(tmp_path: Path) -> None:
    config = {**WIDE, "intermediate_size": 1792}
    (refused,) = plan(tmp_path / "a", config, Mesh(8), "awq:g128").violations
    (wrong,) = plan(tmp_path / "b", config, Mesh(8), "gptq:g128").violations
    assert (refused.question, refused.severity) == ("starts", "error")
    assert (wrong.question, wrong.severity) == ("right", "error")
    for finding in (refused, wrong):
        assert finding.where == "model.layers.0-2.mlp.down_proj"
        assert "1792 / 8 = 224" in finding.message
        assert "224 % 128 = 96" in finding.message
        assert finding.numbers["k_per_rank"] == 224


def test_hints_say_what_works_for_these_files_first(tmp_path: Path) -> None:
    config = {**WIDE, "intermediate_size": 1792, "num_hidden_layers": 4}
    (finding,) = plan(tmp_path, config, Mesh(8), "awq:g128").violations
    assert [hint.needs for hint in finding.hints] == ["these files", "these files", *["original weights"] * 2]
    assert finding.hints[0].what == "these files work at tp 1, 2"
    # 1792 / 2 = 896 = 7 groups, so the eight GPUs work as tp 2 with 4 stages.
    assert finding.hints[1].command == "--tensor-parallel-size 2 --pipeline-parallel-size 4"
    assert "groups of 32" in finding.hints[2].what
    assert "from 1792 to 2048" in finding.hints[3].what


def test_experts_hint_at_expert_parallelism(tmp_path: Path) -> None:
    (finding, *_) = plan(tmp_path, {**MIXTRAL, "intermediate_size": 100}, Mesh(8)).violations
    assert any(hint.command == "--enable-expert-parallel" for hint in finding.hints)


def test_halved_groups_of_experts_are_a_warning_and_then_an_error(tmp_path: Path) -> None:
    config = {**MIXTRAL, "hidden_size": 1024, "head_dim": 128, "intermediate_size": 512}
    halved = plan(tmp_path / "a", config, Mesh(8), "awq:g128")
    assert [(f.code, f.severity, f.question, f.numbers["finer"]) for f in halved.violations] == [
        ("TP026", "warning", "right", 64)
    ]
    refused = plan(tmp_path / "b", {**config, "intermediate_size": 384}, Mesh(8), "awq:g128")
    assert [(f.code, f.severity, f.question) for f in refused.violations] == [("TP025", "error", "starts")]
    whole = plan(tmp_path / "c", {**config, "intermediate_size": 384}, Mesh(8, ep=True), "awq:g128")
    assert whole.violations == ()


def test_sizes_that_work_break_no_rule_and_the_others_do(tmp_path: Path) -> None:
    of = model(tmp_path, LLAMA)
    profile = profiles.load("vllm", "0.33")
    working = sizes_that_work(of, profile, tp=range(1, 17), pp=(1,))
    assert [mesh.tp for mesh in working] == [1, 2, 4, 8]
    for size in range(1, 17):
        broken = any(f.severity == "error" for f in make_plan(of, profile, Mesh(size)).violations)
        assert broken == (Mesh(size) not in working)


@pytest.mark.parametrize(
    ("declared", "asked", "supported", "refused", "pooling", "expected"),
    [
        ("BF16", "auto", ("bfloat16", "float16", "float32"), False, False, "BF16"),
        ("F32", "auto", ("bfloat16", "float16", "float32"), False, False, "BF16"),
        ("F32", "auto", ("bfloat16", "float16", "float32"), False, True, "F16"),
        ("F16", "auto", ("bfloat16", "float16", "float32"), True, False, "BF16"),
        ("BF16", "auto", ("float16", "float32"), False, False, "F16"),
        ("BF16", "auto", ("float16", "float32"), True, False, "F32"),
        ("BF16", "half", ("bfloat16", "float16", "float32"), False, False, "F16"),
        ("BF16", "float32", ("bfloat16", "float16", "float32"), False, False, "F32"),
    ],
)
def test_dtype_resolution(
    declared: str, asked: str, supported: tuple[str, ...], refused: bool, pooling: bool, expected: str
) -> None:
    assert resolve_dtype(declared, asked, supported, refused, pooling) == expected


@pytest.mark.parametrize("width", ["v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank", "head_dim"])
def test_heads_of_no_width_are_planned(tmp_path: Path, width: str) -> None:
    """A damaged width counts as absent; nothing is divided by it."""
    for mesh in (Mesh(3), Mesh(2, pp=2)):
        assert plan(tmp_path, {**DEEPSEEK, width: -1, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0}, mesh).ranks()


def test_a_model_type_of_no_string_is_judged() -> None:
    left = [TensorRef("model.layers.0.mlp.extra.weight", "BF16", (4, 4), 0, 0, 32)]
    (finding,) = unexpected(left, {"model_type": ["llama"]}, sure=True, quantized=False, towers=False)
    assert finding.code == "TN002"
