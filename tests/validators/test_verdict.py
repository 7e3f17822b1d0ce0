"""`judge` against every verdict that vLLM itself gave, and the one-way rules between starts and right."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

import pytest

from mlload import profiles
from mlload.checkpoint.checkpoint import Checkpoint
from mlload.plan.mesh import Mesh
from mlload.plan.model import Model, read_model
from mlload.plan.plan import make_plan
from mlload.validators.context import Request
from mlload.validators.verdict import Verdict, judge
from tests.truth_rows import Row, capability, folder, own_rows, public_rows


@pytest.fixture(params=["own", "public"])
def rows(request: pytest.FixtureRequest) -> Sequence[Row]:
    return own_rows() if request.param == "own" else public_rows()


@cache
def model_of(path: str) -> Model:
    return read_model(Checkpoint.open(path))


@cache
def vllm() -> profiles.Profile:
    return profiles.load("vllm", "0.33")


def verdict_of(row: Row) -> Verdict:
    mesh = Mesh(row["tp"], row["pp"], row["ep"])
    plan = make_plan(model_of(str(folder(row))), vllm(), mesh, capability=capability(row))
    return judge(plan, Request(capability=str(row["capability"]), trust_remote_code=bool(row["trust_remote_code"])))


def label(row: Row) -> str:
    return f"{row['config']} tp {row['tp']} pp {row['pp']} ep {row['ep']} at {row['capability']}"


def test_it_starts_where_vllm_starts(rows: Sequence[Row]) -> None:
    assert [label(row) for row in rows if verdict_of(row).starts is not (row["verdict"] == "ok")] == []


def test_some_error_holds_every_number_of_the_refusal(rows: Sequence[Row]) -> None:
    unexplained = []
    for row in rows:
        message = row["message"] or ""
        if row["verdict"] == "ok" or not message or message.startswith("(bare"):
            continue
        wanted = set(re.findall(r"\d+", message))
        errors = [found for found in verdict_of(row).findings if found.severity == "error"]
        said = [set(re.findall(r"\d+", f"{found.message} {found.where} {found.numbers}")) for found in errors]
        if not any(wanted <= numbers for numbers in said):
            unexplained.append(f"{label(row)}: {message[:120]}")
    assert unexplained == []
