"""A cut of the stored tensors holds the same numbers as the cut of the matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlload.quant.formats import get
from mlload.quant.formats.tensors import Misaligned, Piece, unit
from mlload.quant.spec import Scheme

N, K = 256, 512


def packed(scheme: Scheme) -> dict[str, Any]:
    """Random stored tensors of an [N, K] linear."""
    rng = np.random.default_rng(11)
    fmt = get(scheme.format)
    if scheme.format == "gguf":
        from mlload.checkpoint.gguf_types import BY_NAME

        block = BY_NAME[scheme.layout]
        raw = rng.integers(0, 256, (N, K // block.elements * block.nbytes)).astype(np.uint8)
        parts = fmt.unpack(scheme, {"weight": raw}, N, K)
        for name in ("d", "m"):
            if name in parts:
                parts[name] = rng.normal(size=parts[name].shape).astype(np.float16)
        if scheme.layout == "MXFP4":
            parts["scales"] = 120 + parts["scales"] % 16
        return fmt.pack(scheme, parts)
    bits = scheme.bits
    groups = 1 if not scheme.group_size or scheme.group_size < 0 else K // scheme.group_size
    values: dict[str, Any] = {"weight": rng.integers(0, 1 << bits, (N, K)).astype(np.uint8)}
    floats = np.exp2(rng.integers(-6, 2, (N, groups))).astype(np.float16)
    values |= {"scale": floats, "zero": rng.integers(0, 1 << min(bits, 7), (N, groups)).astype(np.uint8)}
    if scheme.format == "compressed_tensors" and scheme.kind == "int":
        values["weight"] = (values["weight"].astype(np.int16) - (1 << (bits - 1))).astype(np.int8)
        values["zero"] = (values["zero"].astype(np.int16) - (1 << (bits - 1))).astype(np.int8)
    if scheme.kind == "mx":
        values["scale"] = rng.integers(120, 132, (N, groups)).astype(np.uint8)
    if scheme.strategy == "tensor_group":
        values["scale"] = rng.integers(8, 120, (N, groups)).astype(np.uint8)
        values["global_scale"] = np.array([0.5], np.float32)
    if scheme.kind == "float" and bits == 8:
        # No NaN codes.
        values["weight"] = np.where(values["weight"] & 127 == 127, 0, values["weight"])
        del values["zero"]
        if scheme.block:
            shape = (-(-N // scheme.block[0]), -(-K // scheme.block[1]))
            values["scale"] = np.exp2(rng.integers(-6, 2, shape)).astype(np.float32)
    if scheme.act_order:
        values["g_idx"] = rng.permutation(np.arange(K) // (scheme.group_size or K)).astype(np.int32)
    if scheme.kind == "codebook":
        values = {
            "weight": rng.integers(0, 16, (N, K)).astype(np.uint8),
            "scale": rng.random(N * K // 64, np.float32),
            "code": np.linspace(-1, 1, 16, dtype=np.float32),
        }
    return fmt.pack(scheme, values)


SCHEMES = [
    Scheme("awq", "gemm", 4, "int", "group", 64, symmetric=False),
    Scheme("awq", "gemm", 4, "int", "channel", -1, symmetric=False),
    *(Scheme("gptq", "gptq_v2", b, "int", "group", 64, symmetric=False) for b in (2, 3, 4, 8)),
    Scheme("gptq", "gptq", 4, "int", "group", 64),
    Scheme("gptq", "gptq_p", 3, "int", "group", 64, symmetric=False, options=(("planar", True),)),
    Scheme("gptq", "gptq_v2", 4, "int", "group", 64, symmetric=False, act_order=True),
    *(Scheme("compressed_tensors", "pack-quantized", b, "int", "group", 64, symmetric=False) for b in (3, 4, 5, 8)),
    Scheme("compressed_tensors", "pack-quantized", 4, "int", "channel", -1),
    Scheme("compressed_tensors", "nvfp4-pack-quantized", 4, "float", "tensor_group", 16),
    Scheme("compressed_tensors", "mxfp6-pack-quantized", 6, "mx", "group", 32),
    Scheme("fp8", "block", 8, "float", "block", 128, (128, 128)),
    Scheme("fp8", "fbgemm", 8, "float", "channel"),
    Scheme("modelopt", "NVFP4", 4, "float", "tensor_group", 16),
    Scheme("quark", "mxfp4", 4, "mx", "group", 32),
    Scheme("bitsandbytes", "nf4", 4, "codebook", "block", 64),
    *(
        Scheme("gguf", kind, 4, "int")
        for kind in ("Q4_0", "Q5_1", "Q8_0", "Q3_K", "Q4_K", "Q6_K", "MXFP4", "TQ1_0", "TQ2_0")
    ),
]


def taken(array: Any, piece: Piece) -> Any:
    if piece.dim is None:
        return array
    index: list[slice] = [slice(None)] * array.ndim
    index[piece.dim] = slice(piece.start, piece.stop)
    return array[tuple(index)]


@pytest.mark.parametrize("axis", ["N", "K"])
@pytest.mark.parametrize(
    "scheme", SCHEMES, ids=lambda s: f"{s.format}-{s.layout}-{s.bits}-{s.act_order}-{s.group_size}"
)
def test_halves(scheme: Scheme, axis: str) -> None:
    fmt = get(scheme.format)
    stored = packed(scheme)
    whole = fmt.dequantize(scheme, stored, N, K)
    specs = fmt.spec(scheme, N, K)
    smallest = unit(specs, axis)  # type: ignore[arg-type]
    length = {"N": N, "K": K}[axis]
    if smallest == 0:
        assert any(isinstance(fmt.cut(s, axis, 0, K // 2, K), Misaligned) for s in specs)  # type: ignore[arg-type]
        return
    middle = max(smallest, length // 2 // smallest * smallest)
    assert 0 < middle < length
    for start, stop in ((0, middle), (middle, length)):
        part = {}
        for spec in specs:
            if spec.suffix not in stored:
                continue
            piece = fmt.cut(spec, axis, start, stop, length)  # type: ignore[arg-type]
            assert isinstance(piece, Piece), piece
            part[spec.suffix] = taken(stored[spec.suffix], piece)
            if spec.role == "g_idx" and axis == "K" and not scheme.act_order:
                part[spec.suffix] = part[spec.suffix] - start // (scheme.group_size or K)
        n, k = (stop - start, K) if axis == "N" else (N, stop - start)
        want = whole[start:stop] if axis == "N" else whole[:, start:stop]
        assert np.array_equal(fmt.dequantize(scheme, part, n, k), want)
        if smallest > 1:
            odd = [fmt.cut(s, axis, start + 1, stop, length) for s in specs]  # type: ignore[arg-type]
            assert any(isinstance(piece, Misaligned) for piece in odd)
