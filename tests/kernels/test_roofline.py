"""The tables of benchmarks/kernels.md are what the arithmetic gives today."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.roofline import KINDS, beside, beside_table, dense_table, expert_table, layers, predict, touched

PAGE = (Path(__file__).resolve().parents[2] / "benchmarks/kernels.md").read_text()


def test_the_page_shows_the_tables() -> None:
    assert "\n".join(dense_table()) in PAGE
    assert "\n".join(expert_table()) in PAGE
    assert "\n".join(beside_table()) in PAGE


def test_shapes_of_ranks() -> None:
    """Llama-3.1-8B has 32 + 2 x 8 heads of 128 over 4096; a rank of 8 of 70B's down has 28672 / 8 columns."""
    shapes = {what: (n, k) for what, n, k in layers()}
    assert len(shapes) == 2 * 3 * 4
    assert (shapes["8B qkv tp1"], shapes["8B qkv tp8"]) == ((6144, 4096), (768, 4096))
    assert (shapes["70B o tp4"], shapes["70B down tp8"]) == ((8192, 2048), (8192, 3584))
    assert shapes["70B gate_up tp1"] == (57344, 8192)


def test_bytes_beside() -> None:
    """16 tokens of 4096: 128 KB read, 64 KB of codes and 2 KB of scales written."""
    assert dict(beside(16))["quantize e4m3 groups, K = 4096"] == 131072 + 65536 + 2048


def test_floors_by_hand() -> None:
    """4096 x 4096 at 4.125 bits: 8.65 MB, and 16 KB of activations; 1.8 us at 4.8 TB/s. The product of 2048 rows of it
    takes 2 x 2048 x 4096^2 operations: 69.5 us at 989 TFLOP/s."""
    one = predict(KINDS[0], 4096 * 4096, 1, 4096, 4096)
    assert one.nbytes == pytest.approx(8.65e6 + 16384, rel=1e-3)
    assert one.floor == pytest.approx(1.806e-6, rel=1e-3)
    many = predict(KINDS[0], 4096 * 4096, 2048, 4096, 4096)
    assert (many.floor, many.bound) == (pytest.approx(69.48e-6, rel=1e-3), "tensor")


def test_distinct_experts() -> None:
    """128 experts of which 8: one token touches 8, sixteen 82.4."""
    assert touched(128, 8, 1) == pytest.approx(8)
    assert touched(128, 8, 16) == pytest.approx(82.4, abs=0.1)
