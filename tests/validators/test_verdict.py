"""`judge` against every verdict that vLLM itself gave, and the one-way rules between starts and right."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

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


def test_a_gguf_file_needs_a_plugin(tmp_path: Path) -> None:
    """vLLM 0.33 left GGUF to a plugin (layers/quantization/__init__.py:14), though no config declares it."""
    gguf = pytest.importorskip("gguf")
    numpy = pytest.importorskip("numpy")
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_feed_forward_length(64)
    writer.add_context_length(128)
    writer.add_vocab_size(32)
    writer.add_tensor("token_embd.weight", numpy.zeros((32, 64), dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = read_model(Checkpoint.open(str(tmp_path / "model.gguf")))
    verdict = judge(make_plan(model, vllm(), Mesh()), Request())
    assert verdict.starts is False
    assert [(found.code, found.where) for found in verdict.findings if found.code.startswith("EN")] == [
        ("EN010", str(tmp_path / "model.gguf"))
    ]


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
