"""What the shipped kernels become in machine code: the committed table, and a few compiled afresh, held to thresholds.

The thresholds are arithmetic. An H200 reads 4.8 TB/s and issues 132 SMs x 4 instructions x 32 lanes at 1.83 GHz, of
which 64 lanes of 128 are integer ones; at 4.125 bits a weight (16-bit scales, G = 128) that leaves 3.3 instructions, of
them 1.66 integer, for each weight that arrives. More bits a weight leave more time for each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
# By the newest release of triton and by the oldest that is supported.
RELEASES = {
    name: json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())
    for name in ("compiled", "compiled_triton36")
}
TABLE = [{**row, "triton": table["triton"]} for table in RELEASES.values() for row in table["rows"]]

BANDWIDTH, SMS, CLOCK, LANES = 4.8e12, 132, 1.83e9, 128
# The most shared memory a program may have, and what the registers of an SM hold.
SHARED = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024}
# 0.7 us of latency at full bandwidth, a multiprocessor's share, rounded up.
IN_FLIGHT = 32 * 1024


def budget(bits: float) -> float:
    """Instructions a weight while memory delivers it."""
    return SMS * CLOCK * LANES / (BANDWIDTH * 8 / bits)


def bits_of(row: dict[str, Any]) -> float:
    """Stored bits of a weight: code, 16-bit scale and 8-bit zero point a group; of 4-bit codes both in one word."""
    words = row["kernel"].split()
    group = int(next(word for word in words if word.startswith("g") and word[1:].lstrip("-").isdigit())[1:])
    kind = words[0].removeprefix("moe_")
    code = 8 if kind in ("w8a16", "fp8_weights") else 4
    scale = 32 if kind == "fp8_weights" else 16
    if "asym" in words:
        scale = 32 if code == 4 else scale + 8
    return code if group < 0 else code + scale / group


def label(row: dict[str, Any]) -> str:
    return f"{row['kernel']} sm_{row['sm']} {row['triton'][:3]}"


def rows_of(*kinds: str, targets: tuple[int, ...] = (80, 89, 90, 100)) -> list[Any]:
    found = [row for row in TABLE if row["kernel"].split()[0] in kinds and row["sm"] in targets]
    return [pytest.param(row, id=label(row)) for row in found]


def test_the_budget_is_the_one_of_the_arithmetic() -> None:
    assert budget(4.125) == pytest.approx(3.3, abs=0.05)


@pytest.mark.parametrize("release", RELEASES)
def test_every_kernel_is_compiled_for_every_target_that_admits_it(release: str) -> None:
    seen: dict[int, set[str]] = {}
    for row in RELEASES[release]["rows"]:
        seen.setdefault(row["sm"], set()).add(row["kernel"])
    assert set(seen) == {80, 89, 90, 100}
    assert seen[89] == seen[90] == seen[100]
    # Without fp8 instructions: weights unpacked bit by bit, and the cache's rounding by integers.
    fp8 = {name for name in seen[90] if name.removeprefix("moe_").startswith(("fp8_block", "fp8_channel"))}
    assert seen[90] - seen[80] == fp8 | {"quantize e4m3 groups", "kv_cache conversion"}
    assert seen[80] - seen[90] == {"kv_cache bits"}


@pytest.mark.parametrize("row", [pytest.param(row, id=label(row)) for row in TABLE])
def test_no_spills_and_room_in_shared_memory(row: dict[str, Any]) -> None:
    assert row["spills"] == 0
    assert row["shared"] <= SHARED[row["sm"]]


@pytest.mark.parametrize("row", [pytest.param(row, id=label(row)) for row in TABLE])
def test_no_kernel_is_empty(row: dict[str, Any]) -> None:
    """A compiler that takes a kernel for undefined leaves four registers and a branch to itself."""
    assert row["registers"] >= 16
    assert bool(row["matrix"]) == ("per_weight" in row)


DECODE = [param for param in rows_of("w4a16", "moe_w4a16", targets=(90,)) if "BM16" in param.id]


# Up to 64 rows: beyond, the multiply-adds of the scales, M / G of one for a weight, are what the time goes to.
SEVERAL_ROWS = [
    param
    for param in rows_of("w4a16", "moe_w4a16", targets=(90,))
    if " g32 " not in param.id and "BM128" not in param.id
]


@pytest.mark.parametrize("row", [*DECODE, *(param for param in SEVERAL_ROWS if param not in DECODE)])
def test_w4a16_keeps_up_with_memory(row: dict[str, Any]) -> None:
    """Every group size by the threshold of G = 128, whose weights have the fewest bits of those with groups."""
    assert row["per_weight"] <= 3.3
    assert row["integer_per_weight"] <= 1.6


@pytest.mark.parametrize("row", DECODE)
def test_w4a16_on_hopper(row: dict[str, Any]) -> None:
    assert row["conversions"] == 0, "no integer-to-float conversion in the loop"
    assert row["from_registers"] and "HGMMA" in row["matrix"]
    # A tile of weights is 64 words a lane; what is stored are scales, one a group. With zero points nothing is.
    assert row["stores"] <= (0 if "asym" in row["kernel"] else 4)
    assert 128 in row["widths"]
    # Two programs share a multiprocessor: registers and shared memory have room for them.
    assert 2 * row["registers"] * 128 <= 65536 and 2 * row["shared"] <= SHARED[90]
    assert 2 * row["in_flight"] >= IN_FLIGHT


@pytest.mark.parametrize("row", rows_of("w8a16", "fp8_weights", "moe_w8a16", "moe_fp8_weights", targets=(90,)))
def test_8_bit_weights_keep_up_with_memory(row: dict[str, Any]) -> None:
    assert row["per_weight"] <= budget(bits_of(row))
    assert row["integer_per_weight"] <= budget(bits_of(row)) / 2
    assert row["from_registers"]


@pytest.mark.parametrize("row", rows_of("mxfp4", "nvfp4", "moe_mxfp4", "moe_nvfp4", targets=(90,)))
def test_4_bit_floats_from_registers(row: dict[str, Any]) -> None:
    """Bound by arithmetic, at about seven eighths (mxfp4) and seven tenths (nvfp4) of the bandwidth: e2m1's fields are
    not in order, and nvfp4 has a scale for every 16 values."""
    assert row["from_registers"] and row["conversions"] == 0
    nvfp4, many = "nvfp4" in row["kernel"], "BM64" in row["kernel"]
    share = 0.3 if nvfp4 and many else 0.7 if nvfp4 else 0.45 if many else 0.85
    assert row["per_weight"] <= budget(bits_of(row)) / share


@pytest.mark.parametrize("row", rows_of("fp8_block", "fp8_channel", "moe_fp8_block", "moe_fp8_channel", targets=(90,)))
def test_fp8_uses_the_fp8_tensor_cores(row: dict[str, Any]) -> None:
    assert "QGMMA" in row["matrix"] and 128 in row["widths"]
    assert row["per_weight"] <= budget(8 + 32 / 128 / 128)


def test_matrix_instructions_of_each_generation() -> None:
    wanted = {80: {"HMMA"}, 89: {"HMMA"}, 90: {"HGMMA"}, 100: {"UTCHMMA"}}
    for row in (row for row in TABLE if row["kernel"].split()[0] in ("w4a16", "w8a16", "mxfp4", "nvfp4")):
        assert set(row["matrix"]) == wanted[row["sm"]], row["kernel"]


@pytest.mark.parametrize("name", ["w4a16 bf16 g128 BM16", "w4a16 fp16 g32 asym BM16"])
def test_compiled_afresh(name: str) -> None:
    """The table is what this triton makes of the kernels today, on Hopper, as far as the thresholds go."""
    pytest.importorskip("triton")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "benchmarks.compiled_kernels", "--only", name, "--target", "90"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    row = next(row for row in json.loads(done.stdout)["rows"] if row["kernel"] == name)
    test_w4a16_keeps_up_with_memory(row)
    test_w4a16_on_hopper(row)
    test_no_spills_and_room_in_shared_memory(row)
