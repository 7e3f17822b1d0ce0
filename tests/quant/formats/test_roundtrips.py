"""unpack undoes pack, for every layout and width."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlload.checkpoint.tensor import TensorRef
from mlload.quant.formats import bitstream, get
from mlload.quant.formats.tensors import fits
from mlload.quant.spec import Scheme

DTYPES = {"int32": "I32", "int16": "I16", "int64": "I64", "uint32": "U32", "uint8": "U8", "int8": "I8"}
FLOATS = {"float16": "F16", "float32": "F32", "uint16": "BF16"}


def integers(seed: int, shape: tuple[int, ...], bits: int, dtype: Any = np.uint8) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << bits, shape).astype(dtype)


def same(scheme: Scheme, values: dict[str, Any], n: int, k: int, keys: tuple[str, ...]) -> dict[str, Any]:
    """Packs, compares every stored tensor's shape with the spec's, unpacks and compares."""
    fmt = get(scheme.format)
    stored = fmt.pack(scheme, values)
    specs = {spec.suffix: spec for spec in fmt.spec(scheme, n, k)}
    for suffix, array in stored.items():
        dtype = specs[suffix].dtype or "F16"
        assert fits(
            specs[suffix], TensorRef(suffix, "raw" if scheme.format == "gguf" else dtype, array.shape, 0, 0, 0), n, k
        ), (
            suffix,
            array.shape,
        )
        if array.dtype.name in DTYPES and dtype in DTYPES.values() and not dtype.startswith("F8"):
            assert DTYPES[array.dtype.name] == dtype, suffix
    back = fmt.unpack(scheme, stored, n, k)
    for key in keys:
        assert np.array_equal(np.asarray(back[key]), np.asarray(values[key])), key
    return stored


@given(st.integers(1, 8), st.integers(1, 100), st.integers(0, 2**32 - 1))
def test_dense_stream(bits: int, count: int, seed: int) -> None:
    codes = integers(seed, (3, count), bits)
    words = bitstream.pack_words(codes, bits)
    assert words.shape == (3, -(-count * bits // 32)) and words.dtype == np.int32
    assert np.array_equal(bitstream.unpack_words(words, bits, count), codes)


@given(st.integers(2, 8), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_planes(bits: int, blocks: int, seed: int) -> None:
    codes = integers(seed, (2, 32 * blocks), bits)
    words = bitstream.pack_planes(codes, bits)
    assert words.shape == (2, blocks * bits)
    assert np.array_equal(bitstream.unpack_planes(words, bits, 32 * blocks), codes)
    if bits in (2, 4, 8):
        assert np.array_equal(words, bitstream.pack_words(codes, bits))


@given(st.integers(1, 16), st.integers(0, 2**32 - 1), st.booleans())
def test_nibbles_and_sextets(quads: int, seed: int, high_first: bool) -> None:
    codes = integers(seed, (2, 4 * quads), 4)
    packed = bitstream.pack_nibbles(codes, high_first=high_first)
    assert np.array_equal(bitstream.unpack_nibbles(packed, high_first=high_first), codes)
    codes = integers(seed, (2, 4 * quads), 6)
    assert bitstream.pack_sextets(codes).shape == (2, 3 * quads)
    assert np.array_equal(bitstream.unpack_sextets(bitstream.pack_sextets(codes)), codes)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["gemm", "gemv", "gemv_fast"]),
    st.sampled_from([32, 64, 128, -1]),
    st.integers(0, 2**32 - 1),
)
def test_awq(layout: str, group: int, seed: int) -> None:
    n, k = 16, 256
    groups = 1 if group == -1 else k // group
    scheme = Scheme("awq", layout, 4, "int", "group", group, symmetric=False)
    scale = np.exp2(integers(seed, (n, groups), 2).astype(np.float16) - 6).astype(np.float16)
    values = {"weight": integers(seed, (n, k), 4), "scale": scale, "zero": integers(seed + 1, (n, groups), 4)}
    same(scheme, values, n, k, ("weight", "scale", "zero"))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([2, 3, 4, 5, 6, 7, 8]),
    st.sampled_from(["gptq", "gptq_v2", "gptq_p"]),
    st.sampled_from([32, 64, -1]),
    st.integers(0, 2**32 - 1),
)
def test_gptq(bits: int, layout: str, group: int, seed: int) -> None:
    n, k = 32, 128
    planar = bits in (5, 6, 7) or (layout == "gptq_p" and bits == 3)
    scheme = Scheme(
        "gptq", layout, bits, "int", "group", group, symmetric=False, options=(("planar", True),) if planar else ()
    )
    groups = 1 if group == -1 else k // group
    values = {
        "weight": integers(seed, (n, k), bits),
        "scale": integers(seed, (n, groups), 4).astype(np.float16),
        "zero": integers(seed + 1, (n, groups), bits),
        "g_idx": np.random.default_rng(seed).integers(0, groups, k).astype(np.int32),
    }
    same(scheme, values, n, k, ("weight", "scale", "zero", "g_idx"))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.booleans(), st.integers(1, 5), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_compressed_tensors_packed(bits: int, symmetric: bool, groups: int, n: int, seed: int) -> None:
    group = 24
    k = groups * group
    scheme = Scheme(
        "compressed_tensors", "pack-quantized", bits, "int", "group", -1 if groups == 1 else group, symmetric=symmetric
    )
    half = 1 << (bits - 1)
    values: dict[str, Any] = {
        "weight": (integers(seed, (n, k), bits, np.int16) - half).astype(np.int8),
        "scale": integers(seed, (n, groups), 4).astype(np.float32),
    }
    if not symmetric:
        values["zero"] = (integers(seed + 1, (n, groups), bits, np.int16) - half).astype(np.int8)
    stored = same(scheme, values, n, k, tuple(values))
    assert stored["weight_shape"].tolist() == [n, k]


FLOATING = [
    Scheme("compressed_tensors", "nvfp4-pack-quantized", 4, "float", "tensor_group", 16),
    Scheme("compressed_tensors", "mxfp4-pack-quantized", 4, "mx", "group", 32),
    Scheme("compressed_tensors", "mxfp6-pack-quantized", 6, "mx", "group", 32),
    Scheme("compressed_tensors", "mxfp8-quantized", 8, "mx", "group", 32),
    Scheme("modelopt", "NVFP4", 4, "float", "tensor_group", 16, activation="static"),
    Scheme("modelopt", "W4A16_NVFP4", 4, "float", "tensor_group", 16),
    Scheme("modelopt", "MXFP8", 8, "mx", "group", 32),
    Scheme("quark", "mxfp4", 4, "mx", "group", 32),
    Scheme("quark", "mxfp6", 6, "mx", "group", 32),
]


@pytest.mark.parametrize("scheme", FLOATING, ids=lambda s: f"{s.format}-{s.layout}")
def test_floating_blocks(scheme: Scheme) -> None:
    n, k = 8, 64
    values: dict[str, Any] = {
        "weight": integers(1, (n, k), scheme.bits),
        "scale": integers(2, (n, k // (scheme.group_size or 1)), 7),
    }
    keys = ["weight", "scale"]
    if scheme.strategy == "tensor_group":
        values["global_scale"] = np.array([0.25], np.float32)
        keys.append("global_scale")
    if scheme.activation:
        values["input_scale"] = np.array([1.0], np.float32)
    same(scheme, values, n, k, tuple(keys))


@pytest.mark.parametrize("symmetric", [True, False])
def test_quark_int4(symmetric: bool) -> None:
    scheme = Scheme("quark", "int4", 4, "int", "group", 32, symmetric=symmetric, options=(("pack_method", "reorder"),))
    zero = np.full((16, 2), 8, np.uint8) if symmetric else integers(3, (16, 2), 4)
    values = {"weight": integers(1, (16, 64), 4), "scale": np.ones((16, 2), np.float32), "zero": zero}
    same(scheme, values, 16, 64, ("weight", "scale", "zero"))


@pytest.mark.parametrize("layout", ["gpt_oss", "openai"])
def test_mxfp4_experts(layout: str) -> None:
    scheme = Scheme("mxfp4", layout, 4, "mx", "group", 32)
    values = {"weight": integers(1, (3, 8, 64), 4), "scale": integers(2, (3, 8, 2), 8)}
    fmt = get("mxfp4")
    stored = fmt.pack(scheme, values)
    for spec in fmt.spec(scheme, 8, 64, experts=3):
        array = stored[spec.suffix]
        assert fits(spec, TensorRef("", "U8", array.shape, 0, 0, 0), 8, 64, 3)
    back = fmt.unpack(scheme, stored, 8, 64)
    assert np.array_equal(back["weight"], values["weight"])


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["nf4", "fp4"]), st.integers(1, 9), st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_bitsandbytes(layout: str, n: int, k: int, seed: int) -> None:
    scheme = Scheme("bitsandbytes", layout, 4, "codebook", "block", 64)
    values = {
        "weight": integers(seed, (n, k), 4),
        "scale": integers(seed, (-(-n * k // 64),), 5).astype(np.float32),
        "code": np.linspace(-1, 1, 16, dtype=np.float32),
    }
    fmt = get("bitsandbytes")
    stored = fmt.pack(scheme, values)
    for spec in fmt.spec(scheme, n, k):
        if spec.role in ("weight", "scale"):
            assert fits(spec, TensorRef("", "U8", stored[spec.suffix].shape, 0, 0, 0), n, k), (spec, n, k)
    back = fmt.unpack(scheme, stored, n, k)
    assert np.array_equal(back["weight"], values["weight"]) and np.array_equal(back["scale"], values["scale"])


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(
        ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "NVFP4", "TQ2_0"]
    ),
    st.integers(0, 2**32 - 1),
)
def test_gguf_bytes_come_back(kind: str, seed: int) -> None:
    from mlload.checkpoint.gguf_types import BY_NAME

    fmt, n, k = get("gguf"), 3, 512
    scheme = fmt.detect({}, {"weight": TensorRef("w", kind, (n, k), 0, 0, 0)})
    assert scheme is not None
    raw = integers(seed, (n, k // BY_NAME[kind].elements * BY_NAME[kind].nbytes), 8)
    # f16 fields hold any bits, NaN too, and must come back as they were.
    stored = fmt.pack(scheme, fmt.unpack(scheme, {"weight": raw}, n, k))
    assert np.array_equal(stored["weight"], raw)


@given(st.integers(2, 8).filter(lambda b: b != 7), st.integers(0, 2**32 - 1))
def test_mlx(bits: int, seed: int) -> None:
    scheme = Scheme("mlx", "affine", bits, "int", "group", 64, symmetric=False)
    scale = integers(seed, (4, 2), 4).astype(np.float16)
    values = {"weight": integers(seed, (4, 128), bits), "scale": scale, "zero": scale}
    same(scheme, values, 4, 128, ("weight", "scale", "zero"))
