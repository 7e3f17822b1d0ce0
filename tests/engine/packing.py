"""Weights packed in every format by arithmetic of its own, each with the float64 values that the bytes stand for.

N = out_features, K = in_features, G = 32. Nothing of mlload takes part: layouts are written out here from the formats'
own descriptions, and round trips of theirs are held against the libraries in tests/quant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

G = 32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
NF4 = torch.tensor(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
    dtype=torch.float32,
)  # fmt: skip


class Packing(NamedTuple):
    """tensors by suffix, and the weight that they are, float64 [N, K]."""

    tensors: dict[str, Tensor]
    weight: Tensor


class Format(NamedTuple):
    """config: the checkpoint's quantization block. exact: activations stay floats; else they are rounded too."""

    config: dict[str, Any]
    pack: Callable[[Tensor], Packing]
    exact: bool = True


def words(codes: Tensor, bits: int, dim: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Codes along `dim` as one stream of bits, lowest first, in int32 words."""
    rows = codes.movedim(dim, -1).to(torch.int64)
    lanes = 32 // bits
    if order is not None:
        rows = rows.reshape(*rows.shape[:-1], -1, lanes)[..., list(order)].flatten(-2)
    flat = rows.reshape(-1, rows.shape[-1])
    stream = ((flat[..., None] >> torch.arange(bits)) & 1).flatten(-2)
    stream = stream.reshape(flat.shape[0], -1, 32)
    packed = (stream << torch.arange(32)).sum(-1)
    packed = torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
    return packed.reshape(*rows.shape[:-1], -1).movedim(-1, dim).contiguous()


def symmetric(weight: Tensor, bits: int, group: int = G) -> tuple[Tensor, Tensor, Tensor]:
    """Codes about 2**(bits-1), half scales [N, groups], values."""
    n, k = weight.shape
    half = 1 << (bits - 1)
    groups = weight.double().reshape(n, -1, k if group < 0 else group)
    scale = (groups.abs().amax(-1, keepdim=True) / max(half - 1, 1)).half().double()
    codes = (groups / scale).round().clamp(-half, half - 1)
    return (codes + half).reshape(n, k).int(), scale[..., 0].half(), (codes * scale).reshape(n, k)


def asymmetric(weight: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes, zero points [N, groups], half scales, values."""
    n, k = weight.shape
    top = (1 << bits) - 1
    groups = weight.double().reshape(n, -1, G)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scale = ((high - low) / top).half().double()
    zero = (-low / scale).round().clamp(1, top)
    codes = ((groups / scale).round() + zero).clamp(0, top)
    values = ((codes - zero) * scale).reshape(n, k)
    return codes.reshape(n, k).int(), zero[..., 0].int(), scale[..., 0].half(), values


def awq(weight: Tensor) -> Packing:
    codes, zero, scale, values = asymmetric(weight, 4)
    tensors = {
        "qweight": words(codes.T, 4, 1, AWQ_ORDER),
        "qzeros": words(zero.T, 4, 1, AWQ_ORDER),
        "scales": scale.T,
    }
    return Packing(tensors, values)


def gptq(bits: int, *, v2: bool = False, group: int = G, act_order: bool = False) -> Callable[[Tensor], Packing]:
    def pack(weight: Tensor) -> Packing:
        k = weight.shape[1]
        order = torch.randperm(k, generator=torch.Generator().manual_seed(k)) if act_order else torch.arange(k)
        if group < 0 or (v2 is False and not act_order):
            codes, scale, values = symmetric(weight[:, order], bits, group)
            zero = torch.full(scale.shape, 1 << (bits - 1), dtype=torch.int32)
        else:
            codes, zero, scale, values = asymmetric(weight[:, order], bits)
        back = torch.argsort(order)
        index = (torch.arange(k) // (k if group < 0 else group))[back]
        stored = zero if v2 else zero - 1
        tensors = {
            "qweight": words(codes[:, back].T, bits, 0),
            "qzeros": words(stored.T, bits, 1),
            "scales": scale.T,
            "g_idx": index.int(),
        }
        return Packing(tensors, values[:, back])

    return pack


def ct_packed(bits: int, *, asym: bool = False) -> Callable[[Tensor], Packing]:
    def pack(weight: Tensor) -> Packing:
        tensors: dict[str, Tensor] = {"weight_shape": torch.tensor(list(weight.shape))}
        if asym:
            codes, zero, scale, values = asymmetric(weight, bits)
            tensors["weight_zero_point"] = words(zero, bits, 0)
        else:
            codes, scale, values = symmetric(weight, bits)
        return Packing({**tensors, "weight_packed": words(codes, bits, 1), "weight_scale": scale}, values)

    return pack


def int8(weight: Tensor, name: str = "weight_scale") -> Packing:
    scale = (weight.abs().amax(1, keepdim=True) / 127).bfloat16().double()
    codes = (weight.double() / scale).round().clamp(-127, 127)
    return Packing({"weight": codes.to(torch.int8), name: scale.bfloat16()}, codes * scale)


def static_int8(weight: Tensor) -> Packing:
    """Activations by one scale and zero point."""
    packing = int8(weight)
    # The product of two activations has a wider range than what was normalized.
    packing.tensors["input_scale"] = torch.tensor([0.18 if weight.shape[1] > weight.shape[0] else 0.045])
    packing.tensors["input_zero_point"] = torch.tensor([-7], dtype=torch.int8)
    return packing


def quark_int8(strategy: str, *, static: int | None = None, zeros: bool = False) -> Callable[[Tensor], Packing]:
    """One scale of the matrix or one of each row. static: zero point of the activations.
    zeros: points that symmetric weights have all the same in some exports."""

    def pack(weight: Tensor) -> Packing:
        rows = weight.double().abs().amax(1) if strategy == "channel" else weight.double().abs().amax()
        scale = (rows / 127).float()
        spread = scale.double().reshape(-1, 1)
        codes = (weight.double() / spread).round().clamp(-128, 127)
        tensors = {"weight": codes.to(torch.int8), "weight_scale": scale}
        if zeros:
            tensors["weight_zero_point"] = torch.zeros(scale.shape, dtype=torch.int8)
        if static is not None:
            # The product of two activations has a wider range than what was normalized.
            tensors["input_scale"] = torch.tensor(0.18 if weight.shape[1] > weight.shape[0] else 0.045)
            tensors["input_zero_point"] = torch.tensor(static, dtype=torch.int8)
        return Packing(tensors, codes * spread)

    return pack


def fp8(
    strategy: str, name: str = "weight_scale", static: bool = False, block: int = 32
) -> Callable[[Tensor], Packing]:
    def pack(weight: Tensor) -> Packing:
        n, k = weight.shape
        if strategy == "tensor":
            scale = (weight.abs().amax() / 448).float().reshape(1)
            spread = scale.double().reshape(1, 1)
        elif strategy == "channel":
            scale = (weight.abs().amax(1, keepdim=True) / 448).float()
            spread = scale.double()
        else:
            tiles = weight.reshape(n // block, block, k // block, block)
            scale = (tiles.abs().amax((1, 3)) / 448).float()
            spread = scale.double().repeat_interleave(block, 0).repeat_interleave(block, 1)
        codes = (weight.double() / spread).float().clamp(-448, 448).to(torch.float8_e4m3fn)
        tensors = {"weight": codes, name: scale}
        if static:
            tensors["input_scale"] = torch.tensor([0.02])
        return Packing(tensors, codes.double() * spread)

    return pack


def nibbles(codes: Tensor) -> Tensor:
    """[N, K] 0..15 -> uint8 [N, K/2], the even one low."""
    return (codes[:, ::2] | (codes[:, 1::2] << 4)).to(torch.uint8)


def e2m1(scaled: Tensor) -> tuple[Tensor, Tensor]:
    """Nearest of the sixteen 4-bit floats: codes, values."""
    index = (scaled.abs()[..., None] - FP4).abs().argmin(-1)
    sign = torch.where(scaled < 0, -1.0, 1.0).double()
    return index + torch.where(scaled < 0, 8, 0), FP4[index] * sign


def mxfp4(weight_name: str) -> Callable[[Tensor], Packing]:
    def pack(weight: Tensor) -> Packing:
        n, k = weight.shape
        groups = weight.double().reshape(n, -1, 32)
        exponent = (groups.abs().amax(-1, keepdim=True) / 6).log2().ceil().clamp(-127, 127)
        codes, values = e2m1(groups / 2**exponent)
        tensors = {
            weight_name: nibbles(codes.reshape(n, k)),
            "weight_scale": (exponent[..., 0] + 127).to(torch.uint8),
        }
        return Packing(tensors, (values * 2**exponent).reshape(n, k))

    return pack


def nvfp4(style: str) -> Callable[[Tensor], Packing]:
    """style "modelopt": scales multiply; "ct": the global scale divides."""

    def pack(weight: Tensor) -> Packing:
        n, k = weight.shape
        groups = weight.double().reshape(n, -1, 16)
        largest = weight.double().abs().amax()
        whole = (largest / (448 * 6)).float() if style == "modelopt" else (448 * 6 / largest).float()
        factor = whole.double() if style == "modelopt" else 1 / whole.double()
        local = (groups.abs().amax(-1, keepdim=True) / 6 / factor).float().to(torch.float8_e4m3fn)
        step = local.double() * factor
        codes, values = e2m1(groups / step)
        packed = nibbles(codes.reshape(n, k))
        if style == "modelopt":
            tensors = {"weight": packed, "weight_scale": local[..., 0], "weight_scale_2": whole.reshape(())}
            tensors["input_scale"] = torch.tensor(0.01)
        else:
            tensors = {"weight_packed": packed, "weight_scale": local[..., 0], "weight_global_scale": whole.reshape(1)}
            tensors["input_global_scale"] = torch.tensor([100.0])
        return Packing(tensors, (values * step).reshape(n, k))

    return pack


def mxfp8(weight: Tensor) -> Packing:
    n, k = weight.shape
    groups = weight.double().reshape(n, -1, 32)
    exponent = (groups.abs().amax(-1, keepdim=True) / 448).log2().ceil()
    codes = (groups / 2**exponent).float().to(torch.float8_e4m3fn)
    tensors = {"weight": codes.reshape(n, k), "weight_scale": (exponent[..., 0] + 127).to(torch.uint8)}
    return Packing(tensors, (codes.double() * 2**exponent).reshape(n, k))


def bnb_nf4(weight: Tensor) -> Packing:
    import json

    blocks = weight.float().reshape(-1, 64)
    absmax = blocks.abs().amax(1)
    codes = ((blocks / absmax[:, None])[..., None] - NF4).abs().argmin(-1).reshape(-1)
    values = (NF4[codes].double().reshape(-1, 64) * absmax.double()[:, None]).reshape(weight.shape)
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": list(weight.shape)}
    packed = ((codes[::2] << 4) | codes[1::2]).to(torch.uint8)[:, None]
    tensors = {
        "weight": packed,
        "weight.absmax": absmax,
        "weight.quant_map": NF4.clone(),
        "weight.quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
    }
    return Packing(tensors, values)


def bnb_int8(weight: Tensor) -> Packing:
    scale = weight.float().abs().amax(1)
    codes = (weight.float() * (127 / scale[:, None])).round().to(torch.int8)
    tensors = {"weight": codes, "SCB": scale, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return Packing(tensors, codes.double() * scale.double()[:, None] / 127)


def compressed(form: str, weights: dict[str, Any], activations: dict[str, Any] | None = None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def integer(bits: int, strategy: str, *, sym: bool = True, dynamic: bool = False, **more: Any) -> dict[str, Any]:
    return {"num_bits": bits, "type": "int", "symmetric": sym, "strategy": strategy, "dynamic": dynamic, **more}


def floating(bits: int, strategy: str, *, dynamic: Any = False, **more: Any) -> dict[str, Any]:
    return {"num_bits": bits, "type": "float", "symmetric": True, "strategy": strategy, "dynamic": dynamic, **more}


def gptq_config(bits: int, **more: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": G, "desc_act": False, "sym": True, **more}


def quark(weight: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "quant_method": "quark",
        "layer_type_quant_config": {},
        "global_quant_config": {"weight": weight, "input_tensors": inputs, "output_tensors": None, "bias": None},
        "exclude": ["lm_head"],
        "export": {"pack_method": "order", "kv_cache_group": []},
        "quant_mode": "eager_mode",
    }


FORMATS: dict[str, Format] = {
    "awq": Format({"quant_method": "awq", "bits": 4, "group_size": G, "zero_point": True, "version": "gemm"}, awq),
    "gptq 4": Format(gptq_config(4), gptq(4)),
    "gptq 8": Format(gptq_config(8), gptq(8)),
    "gptq 3": Format(gptq_config(3), gptq(3)),
    "gptq 2": Format(gptq_config(2), gptq(2)),
    "gptq v2 asym": Format(gptq_config(4, sym=False, checkpoint_format="gptq_v2"), gptq(4, v2=True)),
    "gptq act-order": Format(gptq_config(4, sym=False, desc_act=True), gptq(4, act_order=True)),
    "gptq group -1": Format(gptq_config(4, group_size=-1), gptq(4, group=-1)),
    "auto-round": Format(
        {
            "quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4, "group_size": G,
            "sym": True, "data_type": "int",
        },
        gptq(4),
    ),
    "ct w4a16": Format(compressed("pack-quantized", integer(4, "group", group_size=G)), ct_packed(4)),
    "ct w8a16": Format(compressed("pack-quantized", integer(8, "group", group_size=G)), ct_packed(8)),
    "ct w4a16 asym": Format(
        compressed("pack-quantized", integer(4, "group", sym=False, group_size=G)), ct_packed(4, asym=True)
    ),
    "ct w8a8": Format(
        compressed("int-quantized", integer(8, "channel"), integer(8, "token", dynamic=True)), int8, exact=False
    ),
    "ct w8a8 asym": Format(
        compressed("int-quantized", integer(8, "channel"), integer(8, "token", dynamic=True, sym=False)),
        int8,
        exact=False,
    ),
    "ct w8a8 static asym": Format(
        compressed("int-quantized", integer(8, "channel"), integer(8, "tensor", sym=False)),
        static_int8,
        exact=False,
    ),
    "ct fp8 channel": Format(
        compressed("float-quantized", floating(8, "channel"), floating(8, "token", dynamic=True)),
        fp8("channel"),
        exact=False,
    ),
    "ct fp8 tensor": Format(
        compressed("float-quantized", floating(8, "tensor"), floating(8, "tensor")),
        fp8("tensor", static=True),
        exact=False,
    ),
    "ct fp8 block": Format(
        compressed(
            "float-quantized",
            floating(8, "block", block_structure=[32, 32]),
            floating(8, "group", dynamic=True, group_size=32),
        ),
        fp8("block"),
        exact=False,
    ),
    "ct nvfp4": Format(
        compressed(
            "nvfp4-pack-quantized",
            floating(4, "tensor_group", group_size=16),
            floating(4, "tensor_group", dynamic="local", group_size=16),
        ),
        nvfp4("ct"),
        exact=False,
    ),
    "ct mxfp4": Format(
        compressed("mxfp4-pack-quantized", floating(4, "group", group_size=32, scale_dtype="torch.uint8")),
        mxfp4("weight_packed"),
    ),
    "fp8 tensor": Format(
        {"quant_method": "fp8", "activation_scheme": "dynamic"}, fp8("tensor"), exact=False
    ),
    "fp8 static": Format(
        {"quant_method": "fp8", "activation_scheme": "static"}, fp8("tensor", static=True), exact=False
    ),
    "fp8 block": Format(
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32]},
        fp8("block", "weight_scale_inv"),
        exact=False,
    ),
    "modelopt fp8": Format(
        {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]},
        fp8("tensor", static=True),
        exact=False,
    ),
    "modelopt nvfp4": Format(
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"]},
        nvfp4("modelopt"),
        exact=False,
    ),
    "quark fp8": Format(
        quark(
            {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False},
            {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False},
        ),
        fp8("tensor", static=True),
        exact=False,
    ),
    "quark int8 channel": Format(
        quark(
            {"dtype": "int8", "qscheme": "per_channel", "ch_axis": 0, "symmetric": True, "is_dynamic": False},
            {"dtype": "int8", "qscheme": "per_channel", "ch_axis": 1, "symmetric": True, "is_dynamic": True},
        ),
        quark_int8("channel", zeros=True),
        exact=False,
    ),
    "quark int8 channel static": Format(
        quark(
            {"dtype": "int8", "qscheme": "per_channel", "ch_axis": 0, "symmetric": True, "is_dynamic": False},
            {"dtype": "int8", "qscheme": "per_tensor", "symmetric": True, "is_dynamic": False},
        ),
        quark_int8("channel", static=0),
        exact=False,
    ),
    "quark int8 tensor": Format(
        quark(
            {"dtype": "int8", "qscheme": "per_tensor", "symmetric": True, "is_dynamic": False},
            {"dtype": "int8", "qscheme": "per_channel", "ch_axis": 1, "symmetric": True, "is_dynamic": True},
        ),
        quark_int8("tensor"),
        exact=False,
    ),
    "quark int8 tensor static": Format(
        quark(
            {"dtype": "int8", "qscheme": "per_tensor", "symmetric": True, "is_dynamic": False},
            {"dtype": "int8", "qscheme": "per_tensor", "symmetric": True, "is_dynamic": False},
        ),
        quark_int8("tensor", static=0, zeros=True),
        exact=False,
    ),
    "quark int8 tensor static asym": Format(
        quark(
            {"dtype": "int8", "qscheme": "per_tensor", "symmetric": True, "is_dynamic": False},
            {"dtype": "int8", "qscheme": "per_tensor", "symmetric": False, "is_dynamic": False},
        ),
        quark_int8("tensor", static=-7),
        exact=False,
    ),
    "quark int8 channel asym": Format(
        quark(
            {"dtype": "int8", "qscheme": "per_channel", "ch_axis": 0, "symmetric": True, "is_dynamic": False},
            {"dtype": "int8", "qscheme": "per_channel", "ch_axis": 1, "symmetric": False, "is_dynamic": True},
        ),
        quark_int8("channel"),
        exact=False,
    ),
    "quark mxfp4": Format(
        quark(
            {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0", "is_dynamic": False},
            {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0", "is_dynamic": True},
        ),
        mxfp4("weight"),
        exact=False,
    ),
    "bnb nf4": Format(
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, bnb_nf4
    ),
    "bnb int8": Format({"quant_method": "bitsandbytes", "load_in_8bit": True}, bnb_int8, exact=False),
    "mxfp8": Format({"quant_method": "modelopt", "quant_algo": "MXFP8", "ignore": ["lm_head"]}, mxfp8, exact=False),
}  # fmt: skip
