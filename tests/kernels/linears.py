"""Random linears in each stored format, and what they mean in float64.

The stored tensors are packed by the format's own writer from codes, scales and zero points that are drawn here; the
expected matrix is computed from those same draws, never by unpacking.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mlload.quant.formats import registry
from mlload.quant.spec import Scheme

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


class Linear(NamedTuple):
    """tensors by suffix, and W float64 [N, K]."""

    tensors: dict[str, Tensor]
    weight: Tensor


def _torch(array: Any) -> Tensor:
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array.view(np.int32) if array.dtype == np.uint32 else array)


def _spread(values: Any, k: int) -> Any:
    return values.repeat(-(-k // values.shape[1]), axis=1)[:, :k]


def integer(scheme: Scheme, n: int, k: int, seed: int = 0) -> Linear:
    """AWQ, GPTQ, compressed-tensors pack-quantized, Quark int4."""
    rng = np.random.default_rng(seed)
    group = k if scheme.group_size in (None, -1) else scheme.group_size
    groups, top = -(-k // group), 1 << scheme.bits
    codes = rng.integers(0, top, (n, k)).astype(np.uint8)
    scale = (rng.random((n, groups)) * 0.02 + 0.001).astype(np.float16)
    zero = np.full((n, groups), top // 2, np.uint8)
    if not scheme.symmetric:
        zero = rng.integers(0, top, (n, groups)).astype(np.uint8)
    order = np.arange(k) // group
    if scheme.act_order:
        order = rng.permutation(order)
    weight = (codes.astype(np.float64) - zero[:, order]) * scale.astype(np.float64)[:, order]
    values: dict[str, Any] = {"weight": codes, "scale": scale, "zero": zero}
    if scheme.act_order:
        values["g_idx"] = order.astype(np.int32)
    if scheme.format == "compressed_tensors":
        values["weight"] = (codes.astype(np.int16) - top // 2).astype(np.int8)
        values["zero"] = (zero.astype(np.int16) - top // 2).astype(np.int8)
    packed = registry.get(scheme.format).pack(scheme, values)
    return Linear({name: _torch(array) for name, array in packed.items()}, torch.from_numpy(weight))


def int8(n: int, k: int, seed: int = 0) -> Linear:
    """compressed-tensors int-quantized, one scale a row."""
    rng = np.random.default_rng(seed)
    weight = rng.integers(-127, 128, (n, k)).astype(np.int8)
    scale = (rng.random((n, 1)) * 0.01 + 0.001).astype(np.float32)
    wide = weight.astype(np.float64) * scale
    return Linear({"weight": _torch(weight), "weight_scale": _torch(scale)}, torch.from_numpy(wide))


def fp8(scheme: Scheme, n: int, k: int, seed: int = 0) -> Linear:
    """e4m3 with tensor, channel or block scales, under fp8's names."""
    generator = torch.Generator().manual_seed(seed)
    codes = (torch.randn(n, k, generator=generator) * 60).clamp(-448, 448).to(torch.float8_e4m3fn)
    name, shape = "weight_scale", (1,)
    if scheme.block is not None:
        name, shape = "weight_scale_inv", (-(-n // scheme.block[0]), -(-k // scheme.block[1]))
    elif scheme.strategy == "channel":
        shape = (n, 1)
    scale = torch.rand(shape, generator=generator) * 0.01 + 0.001
    wide = scale.double()
    if scheme.block is not None:
        wide = wide.repeat_interleave(scheme.block[0], 0)[:n].repeat_interleave(scheme.block[1], 1)[:, :k]
    tensors = {"weight": codes, name: scale}
    if scheme.activation == "static":
        tensors["input_scale"] = torch.tensor([0.02])
    return Linear(tensors, codes.double() * wide)


def fp4(scheme: Scheme, n: int, k: int, seed: int = 0) -> Linear:
    """e2m1 pairs with e8m0 scales (mxfp4) or e4m3 scales under a global one (nvfp4), under ModelOpt's and
    compressed-tensors' names."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, (n, k)).astype(np.uint8)
    packed = _torch(codes[:, 0::2] | (codes[:, 1::2] << 4))
    if scheme.kind == "mx":
        exponent = rng.integers(115, 130, (n, k // 32)).astype(np.uint8)
        weight = E2M1[codes] * np.exp2(exponent.astype(np.float64) - 127).repeat(32, 1)
        if scheme.format == "mxfp4":
            tensors = {"_blocks": packed.reshape(n, k // 32, 16), "_scales": _torch(exponent)}
            return Linear(tensors, torch.from_numpy(weight))
        return Linear({"weight_packed": packed, "weight_scale": _torch(exponent)}, torch.from_numpy(weight))
    local = torch.from_numpy(rng.random((n, k // 16)) * 400 + 1).to(torch.float8_e4m3fn)
    total = torch.tensor([0.0005])
    weight = E2M1[codes] * (local.double() * total.double()).numpy().repeat(16, 1)
    if scheme.format == "modelopt":
        return Linear({"weight": packed, "weight_scale": local, "weight_scale_2": total}, torch.from_numpy(weight))
    divisor = torch.tensor([1024.0])
    weight = E2M1[codes] * (local.double() / 1024).numpy().repeat(16, 1)
    tensors = {"weight_packed": packed, "weight_scale": local, "weight_global_scale": divisor}
    return Linear(tensors, torch.from_numpy(weight))


def grouped(fmt: str, bits: int = 4, group: int = 128, **fields: Any) -> Scheme:
    layout = {"awq": "gemm", "gptq": "gptq", "compressed_tensors": "pack-quantized", "quark": "int4"}[fmt]
    strategy = "channel" if group == -1 else "group"
    return Scheme(fmt, fields.pop("layout", layout), bits, "int", strategy, group, **fields)


FP8_TENSOR = Scheme("fp8", "tensor", 8, "float", "tensor", activation="dynamic", activation_bits=8)
FP8_STATIC = Scheme("fp8", "static", 8, "float", "tensor", activation="static", activation_bits=8)
FP8_CHANNEL = Scheme("fp8", "channel", 8, "float", "channel", activation="dynamic", activation_bits=8)
FP8_BLOCK = Scheme("fp8", "block", 8, "float", "block", 128, (128, 128), activation="dynamic", activation_bits=8)
INT8 = Scheme("compressed_tensors", "int-quantized", 8, "int", "channel", -1, activation="dynamic", activation_bits=8)
INT8_WEIGHTS = Scheme("compressed_tensors", "int-quantized", 8, "int", "channel", -1)
MXFP4 = Scheme("compressed_tensors", "mxfp4-pack-quantized", 4, "mx", "group", 32)
MXFP4_GPT_OSS = Scheme("mxfp4", "gpt_oss", 4, "mx", "group", 32)
NVFP4 = Scheme("compressed_tensors", "nvfp4-pack-quantized", 4, "float", "tensor_group", 16)
NVFP4_MODELOPT = Scheme("modelopt", "W4A16_NVFP4", 4, "float", "tensor_group", 16)
