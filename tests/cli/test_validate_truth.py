"""The JSON of `mlload validate` against every row of vLLM's own decisions: start, bytes and kernels.

Typed as a person would: a folder of a config, sizes, and the capability of a GPU.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from io import StringIO
from typing import Any

import pytest

from mlload.cli.app import main
from mlload.cli.output import Output
from tests.truth_rows import Row, folder, own_rows, public_rows

pytestmark = pytest.mark.slow


def judged(rows: Sequence[Row]) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Each row with the result that the command gives for it; one command for all tp of a config and a GPU."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        key = (str(folder(row)), row["pp"], row["ep"], row["capability"], row["trust_remote_code"])
        groups[key].append(row)
    for (source, pp, ep, capability, trusted), members in groups.items():
        sizes = ",".join(str(row["tp"]) for row in members)
        words = ["validate", source, "--tp", sizes, "--pp", str(pp), "--gpu", f"cc:{capability}", "--format", "json"]
        words += ["--engine", "vllm@0.33"] + ["--ep"] * ep + ["--trust-remote-code"] * trusted
        said = StringIO()
        main(words, Output(said, StringIO()))
        results = {result["tp"]: result for result in json.loads(said.getvalue())["results"]}
        for row in members:
            yield row, results[row["tp"]]


@cache
def answers(which: str) -> tuple[tuple[Row, dict[str, Any]], ...]:
    return tuple(judged(own_rows() if which == "own" else public_rows()))


@pytest.fixture(params=["own", pytest.param("public", marks=pytest.mark.truth)])
def rows(request: pytest.FixtureRequest) -> tuple[tuple[Row, dict[str, Any]], ...]:
    return answers(request.param)


def label(row: Row) -> str:
    return f"{row['config']} tp {row['tp']} pp {row['pp']} ep {row['ep']} at {row['capability']}"


Answered = tuple[tuple[Row, dict[str, Any]], ...]


def test_starts(rows: Answered) -> None:
    assert [label(row) for row, said in rows if said["starts"] is not (row["verdict"] == "ok")] == []


def test_a_capability_is_no_memory(rows: Answered) -> None:
    assert {said["fits"] for _, said in rows} == {None}


def test_weight_bytes_of_every_rank_that_vllm_built(rows: Answered) -> None:
    differ, compared = [], 0
    for row, said in rows:
        for rank, expected in (row["param_bytes_per_rank"] or {}).items():
            found = {each["rank"]: each["weight_bytes"] for each in said["ranks"]}
            compared += 1
            if found.get(int(rank)) != expected:
                differ.append(f"{label(row)} rank {rank}: {found.get(int(rank))}, vLLM allocates {expected}")
    assert differ == []
    assert compared > 500


def test_kernels_of_linear_and_expert_layers(rows: Answered) -> None:
    """A row names a method and the kernel or scheme below it, joined by a slash; of a method that hands the layer
    to another (AutoRound's) it names no more than the method."""
    differ, compared = [], 0
    for row, said in rows:
        if row["verdict"] != "ok":
            continue
        ours: dict[str, set[str]] = defaultdict(set)
        for each in said["kernels"]:
            ours[each["layers"]].add("/".join(filter(None, (each["method"], each["chosen"]))))
        for layer, expected in row["kernels"].items():
            if "Attention[" in layer:
                continue
            compared += 1
            if not any(each == expected or each.startswith(f"{expected}/") for each in ours[layer]):
                differ.append(f"{label(row)}: {layer} is {expected}, ours {sorted(ours[layer])}")
    assert differ == []
    assert compared > 1500


def test_sizes_that_work_are_sizes_that_vllm_builds(rows: Answered) -> None:
    """Of the meshes that vLLM was asked about, those offered are those that it built."""
    built: dict[tuple[Any, ...], dict[tuple[Any, ...], bool]] = defaultdict(dict)
    for row, _ in rows:
        size = (row["tp"], row["pp"], row["ep"])
        built[row["config"], row["capability"], row["trust_remote_code"]][size] = row["verdict"] == "ok"
    wrong = []
    for row, said in rows:
        known = built[row["config"], row["capability"], row["trust_remote_code"]]
        for offer in said["sizes_that_work"]:
            if known.get((offer["tp"], offer["pp"], offer["ep"])) is False:
                wrong.append(f"{label(row)}: {offer} is offered and vLLM refuses it")
    assert wrong == []
