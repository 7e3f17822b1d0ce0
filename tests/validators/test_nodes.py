"""--nodes: ranks in equal contiguous blocks, and which groups lie on one machine. Expected values by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlload.plan.mesh import Mesh
from mlload.validators.nodes import spanning
from tests.cli.conftest import write_llama


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "wide", num_attention_heads=16, num_key_value_heads=16, num_hidden_layers=4)


def asked(source: Path, *words: str) -> tuple[int, dict[str, Any]]:
    line = [sys.executable, "-m", "mlload", "validate", str(source), *words, "--format", "json"]
    done = subprocess.run(line, capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout)["results"][0]


@pytest.mark.parametrize(
    ("mesh", "here", "crosses"),
    [
        (Mesh(tp=16, pp=2), 16, False),  # one stage a machine
        (Mesh(tp=16), 8, True),
        (Mesh(tp=8, pp=2), 8, False),
        (Mesh(tp=4, pp=3), 6, True),  # ranks 4..7 lie on both
        (Mesh(tp=2, pp=3), 6, False),
        (Mesh(tp=8, dp=2), 8, False),
    ],
)
def test_which_groups_cross(mesh: Mesh, here: int, crosses: bool) -> None:
    assert spanning(mesh, here) is crosses


def test_ranks_lie_on_machines_in_contiguous_blocks(wide: Path) -> None:
    code, result = asked(wide, "--tp", "4", "--pp", "2", "--nodes", "2")
    assert code == 0
    assert [rank["node"] for rank in result["ranks"]] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert "--nnodes 2 --node-rank 0" in result["serve"]


def test_a_remainder_refuses(wide: Path) -> None:
    code, result = asked(wide, "--tp", "8", "--nnodes", "3")
    assert code == 1
    finding = next(found for found in result["findings"] if found["code"] == "TP031")
    assert finding["numbers"] == {"nodes": 3, "world_size": 8, "remainder": 2}
    assert finding["hints"][0]["command"] == "--nodes 2"
    assert all(size["tp"] * size["pp"] % 3 == 0 for size in result["sizes_that_work"])


def test_a_group_over_two_machines_is_warned_of(wide: Path) -> None:
    code, result = asked(wide, "--tp", "16", "--nodes", "2")
    assert code == 0
    finding = next(found for found in result["findings"] if found["code"] == "TP032")
    assert finding["severity"] == "warning"
    assert finding["hints"][0]["command"] == "--tp 8 --pp 2 --nodes 2"


def test_the_engines_own_flag_is_judged(wide: Path) -> None:
    line = ["validate", "--format", "json", "--", "vllm", "serve", str(wide), "-tp", "8", "--nnodes", "3"]
    done = subprocess.run([sys.executable, "-m", "mlload", *line], capture_output=True, text=True)
    answer = json.loads(done.stdout)
    assert "TP031" in {found["code"] for found in answer["results"][0]["findings"]}
    assert not any("nnodes" in flag for flag in answer["not_judged"])


def test_each_machine_reads_its_own_ranks(wide: Path) -> None:
    def seconds(*words: str) -> float:
        _, result = asked(wide, "--tp", "4", "--pp", "2", "--storage", "nfs:0.001GB/s", *words)
        found = next(found for found in result["findings"] if found["code"] == "ME005")
        return float(found["numbers"]["read_bytes"])

    assert seconds() == 2 * seconds("--nodes", "2")


@pytest.mark.parametrize("value", ["0", "two", "-1", ""])
def test_what_is_no_number_is_a_sentence(wide: Path, value: str) -> None:
    line = [sys.executable, "-m", "mlload", "validate", str(wide), f"--nodes={value}"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--nodes takes a number of machines" in done.stderr
