"""The same bytes read by the libraries that write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlload.checkpoint.gguf_types import BY_NAME
from mlload.checkpoint.tensor import TensorRef
from mlload.quant.formats import bitstream, elements, get, gptq
from mlload.quant.spec import Scheme

AUTOAWQ = Path(__file__).parents[2] / "data" / "quant" / "autoawq.npz"

BITSANDBYTES = AUTOAWQ.with_name("bitsandbytes.npz")
GPTQMODEL = AUTOAWQ.with_name("gptqmodel.npz")

GGUF_KINDS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "NVFP4",
              "TQ1_0", "TQ2_0"]  # fmt: skip


def scheme_of(fmt: str, tensors: dict[str, Any], dtypes: dict[str, str], config: dict[str, Any]) -> Scheme:
    scheme = get(fmt).detect(
        config, {s: TensorRef(s, dtypes.get(s, "F16"), tuple(a.shape), 0, 0, 0) for s, a in tensors.items()}
    )
    assert scheme is not None
    return scheme


@pytest.mark.parametrize("layout", ["gemm", "gemv", "gemv_fast"])
def test_autoawq(layout: str) -> None:
    arrays = np.load(AUTOAWQ)
    stored = {s: arrays[f"{layout}.{s}"] for s in ("qweight", "qzeros", "scales", "bias")}
    dtypes = {"qweight": "I16" if layout == "gemv_fast" else "I32", "qzeros": "I32"}
    scheme = scheme_of("awq", stored, dtypes, {"group_size": 64})
    assert (scheme.layout, scheme.group_size) == (layout, 64)
    parts = get("awq").unpack(scheme, stored, 32, 256)
    assert np.array_equal(parts["weight"], arrays[f"{layout}.codes"])
    assert np.array_equal(parts["zero"], arrays[f"{layout}.zeros"])
    assert np.array_equal(parts["scale"], arrays[f"{layout}.scale"])
    again = get("awq").pack(scheme, parts)
    for suffix in ("qweight", "scales", "bias") + (() if layout == "gemv_fast" else ("qzeros",)):
        assert np.array_equal(again[suffix], stored[suffix]), suffix
    if layout == "gemm":
        want = arrays["gemm.dequantized"].astype(np.float32)
        # Theirs multiplies in float16: one rounding of a product below 1.
        assert np.abs(get("awq").dequantize(scheme, stored, 32, 256) - want).max() < 2**-12


@pytest.mark.parametrize("name", ["dense2", "dense3", "dense4", "dense8", "planar3", "planar5", "planar6", "planar7"])
def test_gptqmodel(name: str) -> None:
    arrays = np.load(GPTQMODEL)
    bits, planar = int(name[-1]), name.startswith("planar")
    codes, packed = arrays[f"{name}.codes"], arrays[f"{name}.packed"]
    read, write = (
        (bitstream.unpack_planes, bitstream.pack_planes) if planar else (bitstream.unpack_words, bitstream.pack_words)
    )
    assert np.array_equal(write(codes, bits), packed) and np.array_equal(read(packed, bits, 32), codes)
    # Along K: the same words, transposed.
    scheme = Scheme("gptq", "gptq_p", bits, options=(("planar", True),) if planar else ())
    values = {"weight": codes, "scale": np.ones((64, 1), np.float16), "zero": np.zeros((64, 1), np.uint8)}
    assert np.array_equal(get("gptq").pack(scheme, values)["qweight"], packed.T)
    if bits in gptq.ONES:
        # Word by word and value by value agree where no value wraps.
        inner = ((codes > 0) & (codes < (1 << bits) - 1)).all(axis=1)
        assert inner.any() or bits < 4
    else:
        inner = np.ones(64, bool)
    assert np.array_equal(gptq.v1_to_v2(packed, bits, planar=planar)[inner], arrays[f"{name}.v2"][inner])
    assert np.array_equal(gptq.v2_to_v1(packed, bits, planar=planar)[inner], arrays[f"{name}.v1"][inner])


@pytest.mark.parametrize("kind", GGUF_KINDS)
def test_gguf_dequantizes_alike(kind: str) -> None:
    quants = pytest.importorskip("gguf.quants")
    from gguf import GGMLQuantizationType

    block = BY_NAME[kind]
    rng = np.random.default_rng(7)
    raw = rng.integers(0, 256, (4, 2 * 256 // block.elements * block.nbytes)).astype(np.uint8)
    scheme = scheme_of("gguf", {"weight": np.empty((4, 512))}, {"weight": kind}, {})
    fmt = get("gguf")
    # Random f16 fields may be NaN or huge: set them to plain numbers through the parts.
    parts = fmt.unpack(scheme, {"weight": raw}, 4, 512)
    for name in ("d", "m"):
        if name in parts:
            parts[name] = rng.normal(size=parts[name].shape).astype(np.float16)
    if kind == "NVFP4":
        parts["scales"] = parts["scales"] & 0x7F
        parts["scales"][parts["scales"] == 0x7F] = 0x7E
    if kind == "MXFP4":
        parts["scales"] = 100 + parts["scales"] % 50
    stored = fmt.pack(scheme, parts)
    want = quants.dequantize(stored["weight"], GGMLQuantizationType[kind]).reshape(4, 512)
    have = fmt.dequantize(scheme, stored, 4, 512)
    assert np.allclose(have, want, rtol=2e-6, atol=1e-6 * np.abs(want).max())


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"])
def test_gguf_quantized_by_gguf(kind: str) -> None:
    quants = pytest.importorskip("gguf.quants")
    from gguf import GGMLQuantizationType

    weight = np.random.default_rng(3).normal(size=(6, 256)).astype(np.float32)
    stored = quants.quantize(weight, GGMLQuantizationType[kind])
    scheme = scheme_of("gguf", {"weight": weight}, {"weight": kind}, {})
    have = get("gguf").dequantize(scheme, {"weight": stored}, 6, 256)
    assert np.array_equal(have, quants.dequantize(stored, GGMLQuantizationType[kind]))
    # And it is near what was quantized: a wrong order of values would be as far off as noise.
    assert np.abs(have - weight).mean() < 0.12


@pytest.mark.parametrize("kind", ["TQ1_0", "TQ2_0"])
def test_ternary_blocks(kind: str) -> None:
    """Any bytes are read as gguf reads them, and digits are packed into the bytes that gguf packs them into."""
    quants = pytest.importorskip("gguf.quants")
    from gguf import GGMLQuantizationType

    fmt, quant = get("gguf"), GGMLQuantizationType[kind]
    rng = np.random.default_rng(11)
    signs = rng.integers(-1, 2, (5, 512)).astype(np.float32)
    stored = quants.quantize(signs * np.float32(0.375), quant)
    scheme = scheme_of("gguf", {"weight": signs}, {"weight": kind}, {})
    assert (scheme.bits, scheme.group_size, scheme.symmetric) == (2, 256, True)
    parts = fmt.unpack(scheme, {"weight": stored}, 5, 512)
    assert np.array_equal(parts["weight"].astype(np.int8) - 1, signs)
    assert np.array_equal(fmt.pack(scheme, parts)["weight"], stored)
    assert np.array_equal(fmt.dequantize(scheme, {"weight": stored}, 5, 512), signs * np.float32(0.375))
    blocks = rng.integers(0, 256, (300, BY_NAME[kind].nbytes)).astype(np.uint8)
    blocks[:, -2:] = np.float16(0.5).tobytes()[0], np.float16(0.5).tobytes()[1]
    assert np.array_equal(fmt.dequantize(scheme, {"weight": blocks}, 300, 256), quants.dequantize(blocks, quant))


@pytest.mark.parametrize("bits", range(1, 9))
def test_compressed_tensors_packs_alike(bits: int) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import pack_to_int32, unpack_from_int32

    half = 1 << (bits - 1)
    codes = np.random.default_rng(bits).integers(-half, half, (5, 43)).astype(np.int8)
    scheme = Scheme("compressed_tensors", "pack-quantized", bits, "int", "channel", -1)
    stored = get("compressed_tensors").pack(scheme, {"weight": codes, "scale": np.ones((5, 1), np.float32)})
    theirs = pack_to_int32(torch.from_numpy(codes), bits)
    assert np.array_equal(stored["weight_packed"], theirs.numpy())
    assert np.array_equal(unpack_from_int32(theirs, bits, torch.Size((5, 43))).numpy(), codes)


LAYOUTS = {
    "W4A16": "pack-quantized",
    "W4A16_ASYM": "pack-quantized",
    "W8A16": "pack-quantized",
    "W8A8": "int-quantized",
    "FP8": "float-quantized",
    "FP8_DYNAMIC": "float-quantized",
    "FP8_BLOCK": "float-quantized",
    "NVFP4A16": "nvfp4-pack-quantized",
    "MXFP4A16": "mxfp4-pack-quantized",
    "MXFP8A16": "mxfp8-quantized",
}


@pytest.mark.parametrize("preset", list(LAYOUTS))
def test_compressed_tensors_decompresses_alike(preset: str) -> None:
    """A layer compressed by the library: our detection names its layout, our values are its values."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import preset_name_to_scheme

    torch.manual_seed(1)
    n, k = 128, 256
    scheme = preset_name_to_scheme(preset, ["Linear"])
    args = scheme.weights
    layout = LAYOUTS[preset]
    weight = torch.randn(n, k)
    state: dict[str, Any] = {"weight": weight}
    group = args.group_size if args.group_size and args.group_size > 0 else k
    from compressed_tensors.quantization.utils import calculate_qparams

    if str(args.strategy) == "block":
        tiles = weight.reshape(n // 128, 128, k // 128, 128)
        low, high = tiles.amin(dim=(1, 3)), tiles.amax(dim=(1, 3))
    elif str(args.strategy) == "tensor":
        low, high = weight.min().reshape(1), weight.max().reshape(1)
    else:
        groups = weight.reshape(n, k // group, group)
        low, high = groups.amin(-1), groups.amax(-1)
    extra = {}
    if str(args.strategy) == "tensor_group":
        extra["global_scale"] = (448.0 * 6.0 / weight.abs().max()).reshape(1)
        state["weight_global_scale"] = extra["global_scale"]
    scale, zero = calculate_qparams(low, high, args, **extra)
    state["weight_scale"] = scale
    if not args.symmetric:
        state["weight_zero_point"] = zero
    compressor = BaseCompressor.get_value_from_registry(layout)
    stored = compressor.compress(dict(state), scheme)
    theirs = compressor.decompress(dict(stored), scheme)["weight"].float().numpy()

    dtypes = {
        torch.int32: "I32",
        torch.uint8: "U8",
        torch.int8: "I8",
        torch.float8_e4m3fn: "F8_E4M3",
        torch.int64: "I64",
    }
    arrays: dict[str, Any] = {}
    for name, tensor in stored.items():
        tensor = tensor.detach()
        if tensor.dtype == torch.float8_e4m3fn:
            arrays[name] = tensor.view(torch.uint8).numpy()
        elif tensor.dtype == torch.bfloat16:
            arrays[name] = tensor.view(torch.uint16).numpy()
        else:
            arrays[name] = tensor.numpy()
    found = scheme_of("compressed_tensors", arrays, {s: dtypes.get(t.dtype, "F32") for s, t in stored.items()}, {})
    assert (found.layout, found.bits) == (layout, args.num_bits)
    assert found.symmetric == args.symmetric
    ours = get("compressed_tensors").dequantize(found, arrays, n, k)
    # NVFP4 comes out of the library in bf16.
    assert np.allclose(ours, theirs, rtol=2**-8 if preset == "NVFP4A16" else 1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["nf4", "fp4", "nf4.nested", "fp4.nested", "int8"])
def test_bitsandbytes_files(name: str) -> None:
    arrays = np.load(BITSANDBYTES)
    stored = {key.partition("/")[2]: arrays[key] for key in arrays if key.startswith(name + "/")}
    want = stored.pop("values").astype(np.float32)
    dtypes = {s: {"uint8": "U8", "int8": "I8", "float32": "F32"}[a.dtype.name] for s, a in stored.items()}
    scheme = scheme_of("bitsandbytes", stored, dtypes, {})
    assert scheme.layout == name.partition(".")[0]
    assert scheme.option("nested_blocksize") == (256 if "nested" in name else None)
    # Theirs is kept in float16.
    ours = get("bitsandbytes").dequantize(scheme, stored, *want.shape)
    assert np.allclose(ours, want, rtol=2**-10, atol=2**-10)


def test_bitsandbytes_blocks_run_over_the_ends_of_rows() -> None:
    """Rows of 96 in blocks of 64. (The library's own CPU reader is off there, so the original is the judge.)"""
    arrays = np.load(BITSANDBYTES)
    stored = {key.partition("/")[2]: arrays[key] for key in arrays if key.startswith("ragged/")}
    original = stored.pop("original").astype(np.float32)
    ours = get("bitsandbytes").dequantize(Scheme("bitsandbytes", "nf4", 4, "codebook", "block", 64), stored, 16, 96)
    # Half the widest gap of nf4's levels, times the block's largest value.
    limit = (1 - 0.6961928) / 2 * stored["weight.absmax"].repeat(64).reshape(16, 96)
    assert (np.abs(ours - original) <= limit + 2**-9).all()


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
def test_bitsandbytes(kind: str, nested: bool) -> None:
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("bitsandbytes.functional")
    torch.manual_seed(2)
    weight = torch.randn(48, 192)
    packed, state = functional.quantize_4bit(weight, quant_type=kind, blocksize=64, compress_statistics=nested)
    stored = {"weight": packed.numpy()}
    stored |= {f"weight.{name}": tensor.numpy() for name, tensor in state.as_dict(packed=True).items()}
    dtypes = {s: {"uint8": "U8", "float32": "F32"}[a.dtype.name] for s, a in stored.items()}
    scheme = scheme_of("bitsandbytes", stored, dtypes, {})
    assert (scheme.layout, scheme.group_size, scheme.option("nested_blocksize")) == (kind, 64, 256 if nested else None)
    specs = {spec.suffix for spec in get("bitsandbytes").spec(scheme, 48, 192)}
    assert specs == set(stored)
    ours = get("bitsandbytes").dequantize(scheme, stored, 48, 192)
    theirs = functional.dequantize_4bit(packed, state).numpy()
    assert np.allclose(ours, theirs, rtol=1e-6, atol=1e-6)


def test_gpt_oss_experts_as_transformers_reads_them() -> None:
    torch = pytest.importorskip("torch")
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    rng = np.random.default_rng(5)
    blocks = rng.integers(0, 256, (2, 6, 3, 16)).astype(np.uint8)
    scales = rng.integers(110, 140, (2, 6, 3)).astype(np.uint8)
    theirs = mxfp4.convert_moe_packed_tensors(torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32)
    scheme = scheme_of("mxfp4", {"_blocks": blocks, "_scales": scales}, {"_blocks": "U8", "_scales": "U8"}, {})
    ours = get("mxfp4").dequantize(scheme, {"_blocks": blocks, "_scales": scales}, 6, 96)
    # Theirs is transposed to [E, K, N].
    assert np.array_equal(ours, theirs.numpy().transpose(0, 2, 1))


def test_small_floats_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    codes = torch.arange(256, dtype=torch.uint8)
    for dtype, table in (
        (torch.float8_e4m3fn, elements.e4m3_table()),
        (torch.float8_e5m2, elements.e5m2_table()),
    ):
        assert np.array_equal(codes.view(dtype).float().numpy(), table, equal_nan=True)
    finite = np.linspace(-460, 460, 3001).astype(np.float32)
    clipped = np.clip(finite, -448, 448)
    theirs = torch.from_numpy(clipped).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert np.array_equal(elements.encode(finite, elements.e4m3_table()), theirs)
    exponents = elements.e8m0(np.arange(256, dtype=np.uint8))
    theirs = codes.view(torch.float8_e8m0fnu).float().numpy()
    assert np.array_equal(exponents, theirs, equal_nan=True)
    wide = np.random.default_rng(0).normal(size=4096).astype(np.float32)
    assert np.array_equal(elements.to_bf16(wide), torch.from_numpy(wide).bfloat16().view(torch.uint16).numpy())
    assert np.array_equal(
        elements.as_float32(elements.to_bf16(wide)), torch.from_numpy(wide).bfloat16().float().numpy()
    )


def test_fp6_is_compressed_tensors() -> None:
    torch = pytest.importorskip("torch")
    helpers = pytest.importorskip("compressed_tensors.compressors.mxfp6.helpers")
    codes = np.arange(64, dtype=np.uint8).reshape(1, 64)
    values = elements.e2m3_table()[codes]
    theirs = helpers.pack_fp6_to_uint8(torch.from_numpy(values)).numpy()
    scheme = Scheme("compressed_tensors", "mxfp6-pack-quantized", 6, "mx", "group", 32)
    ours = get("compressed_tensors").pack(scheme, {"weight": codes, "scale": np.zeros((1, 2), np.uint8)})
    assert np.array_equal(ours["weight_packed"], theirs)
