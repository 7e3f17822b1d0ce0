"""What is seen of a tensor, in any pieces, is what torch says of the whole."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlload.checkpoint.gguf_types import BY_NAME
from mlload.checkpoint.tensor import TensorRef
from mlload.quant.spec import Scheme
from mlload.validators.deep.measure import ROW, how, measure
from mlload.validators.deep.numbers import NUMBERS
from mlload.validators.deep.roles import Role
from mlload.validators.deep.seen import Seen

TORCH = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
}
SMALLEST_NORMAL = {"F64": 2.0**-1022, "F32": 2.0**-126, "BF16": 2.0**-126, "F16": 2.0**-14, "F8_E4M3": 2.0**-6}


def seen_in_pieces(raw: bytes, dtype: str, role: str, cuts: list[int], scheme: Scheme | None = None) -> Seen:
    """Measured piece by piece, each by another thread, and added up."""
    width = NUMBERS[dtype].nbytes if dtype in NUMBERS else {"I32": 4, "U8": 1, "I8": 1}[dtype]
    way = how(TensorRef("t", dtype, (len(raw) // width,), 0, 0, len(raw)), Role(role, scheme=scheme))
    bounds = sorted({0, len(raw), *(cut * width for cut in cuts if cut * width < len(raw))})
    total = Seen()
    for begin, end in pairwise(bounds):
        part = Seen()
        measure(part, memoryview(raw)[begin:end], begin, way)
        total.add(part)
    return total


def as_torch(raw: bytes, dtype: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(TORCH[dtype]).to(torch.float64)


@pytest.mark.parametrize("dtype", TORCH)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_random_bits_of_every_float(dtype: str, data: st.DataObject) -> None:
    width = NUMBERS[dtype].nbytes
    raw = data.draw(st.binary(min_size=width, max_size=width * 40).map(lambda b: b[: len(b) // width * width]))
    cuts = data.draw(st.lists(st.integers(1, 39), max_size=4))
    number, seen, truth = NUMBERS[dtype], seen_in_pieces(raw, dtype, "weight", cuts), as_torch(raw, dtype)
    bad = ~torch.isfinite(truth)
    assert (seen.nan, seen.inf) == (int(truth.isnan().sum()), int(truth.isinf().sum()))
    assert seen.first_bad == (int(bad.nonzero()[0]) if bad.any() else None)
    finite = truth[~bad]
    assert number.value(seen.positive) == (max(float(finite.max()), 0.0) if finite.numel() and number.signed else
                                           float(finite.max()) if finite.numel() else number.value(0))  # fmt: skip
    if number.signed:
        assert number.value(seen.negative) == (max(float(-finite.min()), 0.0) if finite.numel() else 0.0)
        assert seen.all_zero is bool((truth == 0).all())


@pytest.mark.parametrize("dtype", [dtype for dtype in TORCH if NUMBERS[dtype].nbytes == 1])
def test_all_values_of_the_small_formats(dtype: str) -> None:
    """Every finite pattern has torch's value."""
    number = NUMBERS[dtype]
    for bits in range(number.mask + 1):
        raw = bits.to_bytes(number.nbytes, "little")
        truth = float(as_torch(raw, dtype)[0])
        if bits < number.nonfinite:
            assert number.value(bits) == truth
        else:
            assert not math.isfinite(truth)


@pytest.mark.parametrize("dtype", SMALLEST_NORMAL)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_zero_and_denormal_scales(dtype: str, data: st.DataObject) -> None:
    smallest = SMALLEST_NORMAL[dtype]
    choices = st.sampled_from([0.0, -0.0, smallest, smallest / 2, smallest * 3, 1.0, 0.25])
    values = data.draw(st.lists(choices, min_size=1, max_size=200))
    cuts = data.draw(st.lists(st.integers(1, 199), max_size=3))
    raw = torch.tensor(values, dtype=torch.float64).to(TORCH[dtype]).view(torch.uint8).numpy().tobytes()
    seen, truth = seen_in_pieces(raw, dtype, "scale", cuts), as_torch(raw, dtype)
    assert seen.zeros == int((truth == 0).sum())
    assert seen.zero_at == (truth == 0).nonzero().flatten().tolist()[:64]
    assert seen.denormal == int(((truth != 0) & (truth.abs() < smallest)).sum())
    patterns = {raw[at : at + NUMBERS[dtype].nbytes] for at in range(0, len(raw), NUMBERS[dtype].nbytes)}
    assert seen.constant is (len(patterns) == 1)


def test_microscaling_scales_are_exponents() -> None:
    """OCP MX: 255 is NaN and the only value that is no number; stored as plain bytes by some writers."""
    scheme = Scheme("mxfp4", kind="mx", bits=4)
    raw = bytes([127, 0, 255, 254, 255])
    seen = seen_in_pieces(raw, "U8", "scale", [2], scheme)
    assert (seen.nan, seen.inf, seen.first_bad) == (2, 0, 2)
    assert NUMBERS["F8_E8M0"].value(seen.positive) == 2.0**127
    assert NUMBERS["F8_E8M0"].value(127) == 1.0


@given(st.lists(st.integers(0, 400), max_size=3), st.integers(0, 3), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_rows_of_zeros_are_noticed(cuts: list[int], before: int, empty: int) -> None:
    rows = np.ones((before + empty + 2, ROW // 2), dtype=np.uint16)
    rows[before : before + empty] = 0
    raw = rows.tobytes()
    whole = seen_in_pieces(raw, "BF16", "weight", [])
    assert (whole.empty, whole.first_empty) == (empty * ROW, before * ROW)
    # Pieces that begin elsewhere lose at most a row at each cut.
    parts = seen_in_pieces(raw, "BF16", "weight", [cut * 64 for cut in cuts])
    assert empty * ROW - 2 * ROW * (len(cuts) + 1) <= parts.empty <= empty * ROW


def test_misaligned_memory_and_a_cut_element() -> None:
    values = torch.randn(100, dtype=torch.float32)
    raw = b"\0" + values.numpy().tobytes() + b"\1\2"
    seen = Seen()
    measure(seen, memoryview(raw)[1:], 0, how(TensorRef("t", "F32", (100,), 0, 0, 400), Role("weight")))
    assert NUMBERS["F32"].value(seen.positive) == float(values.max())
    assert NUMBERS["F32"].value(seen.negative) == float(-values.min())
    assert seen.elements == 100


@pytest.mark.parametrize(
    ("dtype", "scheme", "values", "share"),
    [
        ("F8_E4M3", Scheme("fp8", bits=8, kind="float"), [0x7E, 0xFE, 0x7D, 0], 0.5),
        ("I8", Scheme("compressed_tensors", bits=8), [127, 129, 128, 3], 0.75),
        ("U8", Scheme("modelopt", bits=4, kind="float"), [0x7F, 0x61, 0x00, 0x00], 0.25),
        ("I32", Scheme("gptq", bits=4), [0x0F, 0xAA, 0xAA, 0xAA], 0.25),
    ],
)
def test_saturated_codes(dtype: str, scheme: Scheme, values: list[int], share: float) -> None:
    seen = seen_in_pieces(bytes(values) * 64, dtype, "weight", [], scheme)
    assert seen.saturated / seen.sampled == share


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q4_K", "Q6_K", "Q2_K"])
def test_scales_inside_blocks(kind: str) -> None:
    """The gguf package's own dequantization becomes NaN where a block's scale is."""
    gguf = pytest.importorskip("gguf")
    block = BY_NAME[kind].nbytes
    raw = bytearray(np.random.default_rng(0).integers(0, 60, block * 40, dtype=np.uint8).tobytes())
    way = how(TensorRef("t", kind, (40 * BY_NAME[kind].elements,), 0, 0, len(raw)), Role("weight"))
    seen = Seen()
    measure(seen, memoryview(raw), 0, way)
    values = gguf.dequantize(np.frombuffer(raw, np.uint8), gguf.GGMLQuantizationType[kind])
    assert np.isfinite(values).all() and seen.nan == seen.inf == 0
    offset, _ = way.fields[0]
    raw[17 * block + offset : 17 * block + offset + 2] = b"\xff\x7f"
    seen = Seen()
    measure(seen, memoryview(raw), 0, way)
    values = gguf.dequantize(np.frombuffer(raw, np.uint8), gguf.GGMLQuantizationType[kind])
    assert (seen.nan, seen.first_bad) == (1, 17)
    assert set(np.flatnonzero(~np.isfinite(values)) // BY_NAME[kind].elements) == {17}
