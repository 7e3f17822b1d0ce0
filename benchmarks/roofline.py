"""Floors on an H200 by arithmetic, for real layer shapes: what benchmarks/kernels.md shows. Nothing is measured here.

    python -m benchmarks.roofline          (prints the tables)

floor:   bytes that must move at 4.8 TB/s, or operations at the tensor cores' rate, whichever takes longer
issue:   main-loop instructions per weight (benchmarks/results/compiled.json) at 132 x 4 x 32 lanes and 1.83 GHz
predict: the longer of the bytes at 85 % of the bandwidth and of the issue time, and 2 us of launch, fill and drain
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

BANDWIDTH, ISSUE = 4.8e12, 132 * 1.83e9 * 128
DENSE = {"bf16": 989e12, "fp8": 1979e12, "int8": 1979e12}
SHARE, OVERHEAD = 0.85, 2e-6
TABLE = Path(__file__).parent / "results/compiled.json"


class Kind(NamedTuple):
    """bits of memory for a weight, scales included; rate: of the tensor cores; compiled: its row of the table."""

    name: str
    bits: float
    rate: str
    compiled: str


KINDS = (
    Kind("w4a16 g128 sym", 4 + 16 / 128, "bf16", "w4a16 bf16 g128 BM16"),
    Kind("w4a16 g128 asym", 4 + 32 / 128, "bf16", "w4a16 bf16 g128 asym BM16"),
    Kind("w4a16 g32 asym", 4 + 32 / 32, "bf16", "w4a16 bf16 g32 asym BM16"),
    Kind("w8a16 channel", 8, "bf16", "w8a16 bf16 g-1 BM16"),
    Kind("fp8 block", 8 + 32 / 128**2, "fp8", "fp8_block BM16"),
    Kind("int8", 8, "int8", "int8 BM16"),
    Kind("mxfp4", 4 + 16 / 32, "bf16", "mxfp4 bf16 g32 BM16"),
    Kind("nvfp4", 4 + 16 / 16, "bf16", "nvfp4 bf16 g16 BM16"),
)
# (what, N, K of a rank)
LAYERS = (
    ("8B qkv tp1", 6144, 4096),
    ("8B gate_up tp1", 28672, 4096),
    ("8B down tp1", 4096, 14336),
    ("8B gate_up tp4", 7168, 4096),
    ("8B down tp4", 4096, 3584),
    ("70B qkv tp4", 2560, 8192),
    ("70B gate_up tp4", 14336, 8192),
    ("70B down tp4", 8192, 7168),
    ("70B gate_up tp8", 7168, 8192),
    ("70B down tp8", 8192, 3584),
)
# (what, experts, top_k, weights of an expert)
EXPERTS = (("Qwen3-30B-A3B", 128, 8, 3 * 2048 * 768), ("DeepSeek-V3", 256, 8, 3 * 7168 * 2048))


class Prediction(NamedTuple):
    nbytes: float
    operations: float
    floor: float
    predicted: float
    bound: str


def instructions(name: str) -> float:
    rows = json.loads(TABLE.read_text())["rows"]
    return float(next(row["per_weight"] for row in rows if row["kernel"] == name and row["sm"] == 90))


def predict(kind: Kind, weights: float, m: float, n: int, k: int) -> Prediction:
    """One product of m rows with `weights` weights, n and k of them apart for what is read and written beside."""
    nbytes = weights * kind.bits / 8 + 2 * m * (n + k)
    operations = 2 * m * weights
    memory, tensor = nbytes / BANDWIDTH, operations / DENSE[kind.rate]
    issue = weights * instructions(kind.compiled) / ISSUE
    times = {"memory": memory / SHARE, "issue": issue, "tensor": tensor}
    bound = max(times, key=times.__getitem__)
    return Prediction(nbytes, operations, max(memory, tensor), times[bound] + OVERHEAD, bound)


def touched(experts: int, top_k: int, tokens: int) -> float:
    """Distinct experts that a batch of independent tokens is expected to touch."""
    return float(experts * (1 - (1 - top_k / experts) ** tokens))


def dense_table() -> Iterator[str]:
    yield "| layer of a rank | N x K | " + " | ".join(kind.name for kind in KINDS) + " |"
    yield "|---|---|" + "---|" * len(KINDS)
    for what, n, k in LAYERS:
        cells = []
        for kind in KINDS:
            p = predict(kind, n * k, 1, n, k)
            cells.append(f"{p.nbytes / 1e6:.1f} MB, {p.floor * 1e6:.1f} / {p.predicted * 1e6:.1f}")
        yield f"| {what} | {n} x {k} | " + " | ".join(cells) + " |"


def expert_table() -> Iterator[str]:
    yield "| experts | tokens | touched | weights | bytes | floor us | predicted us |"
    yield "|---|---|---|---|---|---|---|"
    for what, experts, top_k, weights in EXPERTS:
        for kind in (KINDS[0], KINDS[4], KINDS[6]):
            for tokens in (1, 16, 64):
                count = touched(experts, top_k, tokens)
                p = predict(kind, weights * count, tokens * top_k / count, 0, 0)
                # Routing, two products, activation and sum: five launches in place of one.
                yield (
                    f"| {what} | {tokens} | {count:.1f} | {kind.name} | {p.nbytes / 1e6:.1f} MB "
                    f"| {p.floor * 1e6:.1f} | {(p.predicted + 4 * OVERHEAD) * 1e6:.1f} ({p.bound}) |"
                )


if __name__ == "__main__":
    print("\n".join([*dense_table(), "", *expert_table()]))
