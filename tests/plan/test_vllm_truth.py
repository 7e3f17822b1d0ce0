"""The plan against what vLLM itself decided for real configs: verdicts, numbers and bytes, row by row."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache

import pytest

from mlload import profiles
from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import Finding
from mlload.kernels.choice import choose
from mlload.plan.mesh import Mesh
from mlload.plan.model import Model, read_model
from mlload.plan.plan import Plan, make_plan
from tests.truth_rows import TORCH, Row, capability, folder, own_rows, public_rows

# Where a plan must foresee the refusal; the other stages judge the config and the GPU.
PLANNED = ("parallel", "model-build")


@pytest.fixture(params=["own", "public"])
def rows(request: pytest.FixtureRequest) -> Sequence[Row]:
    return own_rows() if request.param == "own" else public_rows()


@cache
def model_of(path: str) -> Model:
    return read_model(Checkpoint.open(path))


@cache
def vllm() -> profiles.Profile:
    return profiles.load("vllm", "0.33")


def plan_of(row: Row) -> Plan:
    mesh = Mesh(row["tp"], row["pp"], row["ep"])
    return make_plan(model_of(str(folder(row))), vllm(), mesh, capability=capability(row))


def label(row: Row) -> str:
    return f"{row['config']} tp {row['tp']} pp {row['pp']} ep {row['ep']} at {row['capability']}"


def refusals(plan: Plan) -> list[Finding]:
    """Errors of the plan and layers that no kernel runs."""
    found = list(plan.violations)
    for layer in plan.layers():
        choice = choose(
            layer.shape,
            layer.scheme,
            plan.view.method,
            plan.dtype,
            plan.capability,
            plan.profile,
            model_type=plan.model.config.text_type,
            where=layer.where,
        )
        found += choice.refusals
    return [f for f in found if f.severity == "error" and f.question == "starts"]


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+", text))


def test_weight_bytes_of_unquantized_models_equal_the_parameters_of_vllm(rows: Sequence[Row]) -> None:
    wrong: list[str] = []
    checked = 0
    for row in rows:
        if row["verdict"] != "ok" or row["quant"] is not None or row["capability"] != "9.0":
            continue
        sizes = plan_of(row).ranks()
        for rank, expected in row["param_bytes_per_rank"].items():
            checked += 1
            if sizes[int(rank)].weight_bytes != expected:
                wrong.append(f"{label(row)} rank {rank}: {sizes[int(rank)].weight_bytes} for {expected}")
    assert checked > 150
    assert not wrong, "\n".join(wrong)


def test_weight_bytes_of_quantized_models_equal_the_parameters_of_vllm(rows: Sequence[Row]) -> None:
    wrong: list[str] = []
    for row in rows:
        if row["verdict"] != "ok" or row["quant"] is None:
            continue
        sizes = plan_of(row).ranks()
        for rank, expected in row["param_bytes_per_rank"].items():
            if sizes[int(rank)].weight_bytes != expected:
                wrong.append(f"{label(row)} rank {rank}: {sizes[int(rank)].weight_bytes} for {expected}")
    assert not wrong, "\n".join(wrong)


def test_bytes_by_dtype_add_up_and_the_dtype_is_the_resolved_one(rows: Sequence[Row]) -> None:
    for row in rows:
        if row["verdict"] != "ok":
            continue
        plan = plan_of(row)
        assert plan.dtype == TORCH[row["dtype"]], label(row)
        for rank in plan.ranks():
            assert sum(rank.by_dtype.values()) == sum(rank.by_component.values()) == rank.weight_bytes


def test_a_plan_breaks_a_rule_exactly_where_vllm_refuses(rows: Sequence[Row]) -> None:
    wrong: list[str] = []
    refused = 0
    for row in rows:
        if row["stage"] not in (*PLANNED, "done"):
            continue
        found = refusals(plan_of(row))
        refused += bool(found)
        if bool(found) != (row["verdict"] == "error"):
            wrong.append(f"{label(row)}: vLLM says {row['verdict']} {row['message']}, the plan {found[:1]}")
    assert refused > 100
    assert not wrong, "\n".join(wrong)


def test_some_finding_holds_every_number_of_the_message(rows: Sequence[Row]) -> None:
    wrong: list[str] = []
    for row in rows:
        message = row["message"] or ""
        if row["stage"] not in PLANNED or message.startswith("(bare AssertionError"):
            continue
        found = refusals(plan_of(row))
        if not any(numbers(message) <= numbers(f"{f.where} {f.message} {json.dumps(f.numbers)}") for f in found):
            wrong.append(f"{label(row)}: {message} / {[f.message for f in found]}")
    assert not wrong, "\n".join(wrong)


# A bare assertion's line in vLLM 0.33.0 -> the rule that it stands for.
ASSERTIONS = {
    "llama.py:151": "TP002",
    "minimax_m2.py:164": "TP002",
    "linear.py:731": "TP003",
    "moe_wna16.py:286": "TP025",
}


def test_bare_assertions_get_the_rule_that_they_come_from(rows: Sequence[Row]) -> None:
    for row in rows:
        place = re.search(r"(\w+\.py:\d+)\)", row["message"] or "")
        if row["stage"] in PLANNED and place is not None:
            assert ASSERTIONS[place[1]] in {f.code for f in refusals(plan_of(row))}, label(row)


def test_groups_that_straddle_ranks_start_and_are_wrong(rows: Sequence[Row]) -> None:
    """Rows with a note: vLLM builds the model, its shards would be wrong."""
    for row in rows:
        if row["note"] is not None and row["verdict"] == "ok":
            wrong = [f for f in plan_of(row).violations if f.question == "right" and f.severity == "error"]
            assert [f.code for f in wrong] == ["TP021"], label(row)
