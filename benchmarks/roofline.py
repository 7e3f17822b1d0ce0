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
    Kind("w4a16 g32 sym", 4 + 16 / 32, "bf16", "w4a16 bf16 g32 BM16"),
    Kind("w4a16 g32 asym", 4 + 32 / 32, "bf16", "w4a16 bf16 g32 asym BM16"),
    Kind("w8a16 channel", 8, "bf16", "w8a16 bf16 g-1 BM16"),
    Kind("fp8 as weights", 8 + 32 / 128, "bf16", "fp8_weights bf16 g128 BM16"),
    Kind("fp8 channel", 8, "fp8", "fp8_channel BM16"),
    Kind("fp8 block", 8 + 32 / 128**2, "fp8", "fp8_block BM16"),
    Kind("int8", 8, "int8", "int8 BM16"),
    Kind("mxfp4", 4 + 16 / 32, "bf16", "mxfp4 bf16 g32 BM16"),
    Kind("nvfp4", 4 + 16 / 16, "bf16", "nvfp4 bf16 g16 BM16"),
)
FLOATS = Kind("bf16", 16, "bf16", "moe_float bf16 g-1 BM16")
OF_EXPERTS = (FLOATS, *(kind for kind in KINDS if kind.name in ("w4a16 g128 sym", "fp8 block", "mxfp4")))
# (what, hidden size, intermediate size, heads, heads of keys); a head is 128 wide.
MODELS = (("8B", 4096, 14336, 32, 8), ("70B", 8192, 28672, 64, 8))
SIZES = (1, 4, 8)
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


def layers() -> Iterator[tuple[str, int, int]]:
    """(what, N, K of a rank): column-parallel ones are cut along N, row-parallel ones along K."""
    for model, hidden, inner, heads, kv in MODELS:
        for tp in SIZES:
            yield f"{model} qkv tp{tp}", (heads + 2 * kv) * 128 // tp, hidden
            yield f"{model} o tp{tp}", hidden, heads * 128 // tp
            yield f"{model} gate_up tp{tp}", 2 * inner // tp, hidden
            yield f"{model} down tp{tp}", hidden, inner // tp


def dense_table() -> Iterator[str]:
    yield "| layer of a rank | N x K | MFLOP a row | " + " | ".join(kind.name for kind in KINDS) + " |"
    yield "|---|---|---|" + "---|" * len(KINDS)
    for what, n, k in layers():
        cells = []
        for kind in KINDS:
            p = predict(kind, n * k, 1, n, k)
            cells.append(f"{p.nbytes / 1e6:.1f} MB, {p.floor * 1e6:.1f} / {p.predicted * 1e6:.1f}")
        yield f"| {what} | {n} x {k} | {2 * n * k / 1e6:.0f} | " + " | ".join(cells) + " |"


def expert_table() -> Iterator[str]:
    yield "| experts | tokens | touched | weights | bytes | floor us | predicted us |"
    yield "|---|---|---|---|---|---|---|"
    for what, experts, top_k, weights in EXPERTS:
        for kind in OF_EXPERTS:
            for tokens in (1, 16, 64):
                count = touched(experts, top_k, tokens)
                p = predict(kind, weights * count, tokens * top_k / count, 0, 0)
                # Routing, two products, activation and sum: five launches in place of one.
                yield (
                    f"| {what} | {tokens} | {count:.1f} | {kind.name} | {p.nbytes / 1e6:.1f} MB "
                    f"| {p.floor * 1e6:.1f} | {(p.predicted + 4 * OVERHEAD) * 1e6:.1f} ({p.bound}) |"
                )


def beside(m: int) -> Iterator[tuple[str, float]]:
    """(what, bytes) of the kernels that multiply nothing, for m tokens of the 8B model; dequantize takes the weight."""
    _, hidden, inner, _, kv = MODELS[0]
    yield "quantize e4m3 groups, K = 4096", m * (2 * hidden + hidden + 4 * hidden / 128)
    yield "quantize e4m3 groups, K = 14336", m * (2 * inner + inner + 4 * inner / 128)
    yield "quantize int8 rows, K = 4096", m * (2 * hidden + hidden + 4)
    yield "kv_cache store, 8 heads", m * 2 * kv * 128 * (2 + 1)
    yield "activation, I = 768, 8 choices", m * 8 * 768 * (2 * 2 + 2)
    yield "permute columns, K = 2048, 8 choices", m * 8 * 2048 * (2 + 2)
    yield "sum of 8 choices, H = 2048", m * (8 * 2 + 2) * 2048
    yield "reduce 4 splits, N = 4096", m * (4 * 4 + 2) * hidden
    yield "dequantize w4 g128 asym, 28672 x 4096", 2 * inner * hidden * (KINDS[1].bits / 8 + 2)


def beside_table() -> Iterator[str]:
    yield "| kernel | 16 tokens | floor us | 2048 tokens | floor us |"
    yield "|---|---|---|---|---|"
    for (what, few), (_, many) in zip(beside(16), beside(2048), strict=True):
        cells = (f"{size / 1e6:.2f} MB | {size / BANDWIDTH * 1e6:.2f}" for size in (few, many))
        yield f"| {what} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    print("\n".join([*dense_table(), "", *expert_table(), "", *beside_table()]))
