"""Stored tensors of one linear in the forms that kernels start from, on the device where they lie.

N = out_features, K = in_features, G = group size. Bit orders come from `quant.formats`; its numpy readers are the
reference for these and read what these do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mlload.quant.formats import gptq, registry
from mlload.quant.formats.awq import UNPACK_ORDER
from mlload.quant.spec import Scheme

NIBBLES = tuple(range(0, 32, 4))
BYTES = tuple(range(0, 32, 8))


class Integers(NamedTuple):
    """Weight-only integers: W[n, k] = (codes[n, k] - zero[n, g]) * scale[n, g], g = g_idx[k] or k // G.

    codes: uint8 [N, K]
    scale: float [N, groups], in the stored dtype
    zero:  uint8 [N, groups], None where every zero point is 2**(bits - 1)
    g_idx: int64 [K] where rows do not belong to groups in order
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor | None
    g_idx: Tensor | None


class Elements(NamedTuple):
    """Float elements with multipliers.

    codes: e4m3 [N, K], or uint8 [N, K/2] of e2m1 pairs, the even one in the low nibble
    scale: as the scheme's granularity has it: [] tensor, [N] channel, [ceil(N/bn), ceil(K/bk)] block,
           [N, K/16] e4m3 (nvfp4), [N, K/32] uint8 e8m0 (mxfp4)
    input_scale:  float32 [] with static activations
    global_scale: float32 [] or [N], multiplies (nvfp4)
    """

    codes: Tensor
    scale: Tensor
    input_scale: Tensor | None = None
    global_scale: Tensor | None = None


def integers(scheme: Scheme, tensors: Mapping[str, Tensor], n: int, k: int) -> Integers:
    """4 and 8-bit weight-only integers of AWQ, GPTQ, compressed-tensors and Quark."""
    if scheme.format == "gptq":
        return _gptq(scheme, tensors, k)
    if scheme.format == "compressed_tensors":
        return _compressed_tensors(scheme, tensors, n, k)
    names = ("qweight", "scales", "qzeros")
    if scheme.format == "quark":
        if scheme.layout == "int8":
            return _signed_bytes(tensors)
        names = ("weight", "weight_scale", "weight_zero_point")
    weight, scale, zero = names
    order = [4 * nibble for nibble in UNPACK_ORDER]
    zeros = _fields(tensors[zero], order).T.contiguous() if zero in tensors else None
    return Integers(_fields(tensors[weight], order).T.contiguous(), tensors[scale].T.contiguous(), zeros, None)


def _gptq(scheme: Scheme, tensors: Mapping[str, Tensor], k: int) -> Integers:
    shifts = NIBBLES if scheme.bits == 4 else BYTES
    codes = _fields(tensors["qweight"].T, shifts)[:, :k]
    scale = tensors["scales"].T.contiguous()
    zero = tensors.get("qzeros")
    if zero is not None:
        if scheme.layout == "gptq":
            # Whole words, so that a zero point stored as -1 takes back what it borrowed; int32 wraps.
            zero = zero + gptq.ONES[scheme.bits]
        zero = _fields(zero, shifts).T[: scale.shape[0]].contiguous()
    return Integers(codes.contiguous(), scale, zero, _in_disorder(tensors.get("g_idx"), scheme, scale.shape[1]))


def _compressed_tensors(scheme: Scheme, tensors: Mapping[str, Tensor], n: int, k: int) -> Integers:
    if "weight_packed" not in tensors:
        return _signed_bytes(tensors)
    shifts = NIBBLES if scheme.bits == 4 else BYTES
    zero = tensors.get("weight_zero_point")
    zeros = None if zero is None else _fields(zero.T, shifts).T[:n].contiguous()
    codes = _fields(tensors["weight_packed"], shifts)[:, :k].contiguous()
    scale = tensors["weight_scale"].reshape(n, -1)
    return Integers(codes, scale, zeros, _in_disorder(tensors.get("weight_g_idx"), scheme, scale.shape[1]))


def _signed_bytes(tensors: Mapping[str, Tensor]) -> Integers:
    """int8 values [N, K] as codes offset by 128."""
    weight, zero = tensors["weight"], tensors.get("weight_zero_point")
    n = weight.shape[0]
    scale = tensors["weight_scale"].reshape(-1, 1) if tensors["weight_scale"].dim() < 2 else tensors["weight_scale"]
    zeros = None if zero is None else _offset(zero.reshape(scale.shape).expand(n, -1))
    return Integers(_offset(weight), scale.expand(n, -1), zeros, None)


def _offset(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.uint8) ^ 0x80


def _fields(words: Tensor, shifts: tuple[int, ...] | list[int]) -> Tensor:
    """int32 [..., W] -> uint8 [..., W * len(shifts)]: the field at each shift, in the order given."""
    at = torch.tensor(shifts, dtype=torch.int32, device=words.device)
    mask = 15 if len(shifts) == 8 else 255
    fields = (words.contiguous()[..., None] >> at) & mask
    return fields.to(torch.uint8).flatten(-2)


def _in_disorder(g_idx: Tensor | None, scheme: Scheme, groups: int) -> Tensor | None:
    """g_idx where it says more than k // G. Negative ones count from the last group."""
    if g_idx is None or scheme.group_size in (None, -1):
        return None
    index = g_idx.to(torch.int64)
    if not scheme.act_order and torch.equal(index, torch.arange(len(index), device=index.device) // scheme.group_size):
        return None
    return torch.where(index < 0, index + groups, index)


def elements(scheme: Scheme, tensors: Mapping[str, Tensor], n: int, k: int) -> Elements:
    """fp8, mxfp4 and nvfp4 weights of every format."""
    weight = tensors.get("weight_packed", tensors.get("weight"))
    if scheme.format == "mxfp4":
        blocks, scales = ("_blocks", "_scales") if scheme.layout == "gpt_oss" else ("blocks", "scales")
        packed = tensors[blocks]
        return Elements(packed.reshape(*packed.shape[:-2], k // 2), tensors[scales])
    assert weight is not None
    names = (str(scheme.option("scale", "weight_scale_inv")), "weight_scale_inv", "weight_scale")
    scale = next(tensors[name] for name in names if name in tensors)
    static = tensors.get("input_scale") if scheme.activation == "static" and scheme.bits == 8 else None
    static = None if static is None else static.to(torch.float32).max().reshape(())
    if scheme.bits == 4:
        codes = weight.view(torch.uint8)
        if scheme.kind == "mx":
            return Elements(codes, scale.view(torch.uint8))
        if "weight_scale_2" in tensors:
            whole = tensors["weight_scale_2"].to(torch.float32)
        else:
            whole = 1 / tensors["weight_global_scale"].to(torch.float32)
        whole = whole.reshape(() if whole.numel() == 1 else (n,))
        return Elements(codes, scale.view(torch.float8_e4m3fn), None, whole)
    if scale.element_size() == 1:
        scale = e8m0(scale)
    scale = scale.to(torch.float32)
    if scheme.block is not None:
        scale = scale.reshape(-(-n // scheme.block[0]), -1)
    else:
        scale = scale.reshape(()) if scale.numel() == 1 and scheme.strategy == "tensor" else scale.reshape(-1)
    return Elements(weight.view(torch.float8_e4m3fn), scale, static)


def e8m0(exponents: Tensor) -> Tensor:
    """2**(byte - 127) as float32; 255 is NaN."""
    raw = exponents.view(torch.uint8).to(torch.int32)
    # Above 0 the byte is float32's own exponent field; 2**-127 is subnormal there.
    values = torch.where(raw == 0, 1 << 22, raw << 23).view(torch.float32)
    return torch.where(raw == 255, torch.nan, values)


def dequantized(scheme: Scheme, tensors: Mapping[str, Tensor], n: int, k: int) -> Tensor:
    """float32 [N, K] of any readable scheme, through the format's own reader (numpy, on the CPU)."""
    arrays = {name: _array(tensor) for name, tensor in tensors.items()}
    values = registry.get(scheme.format).dequantize(scheme, arrays, n, k)
    device = next(iter(tensors.values())).device
    return torch.from_numpy(values).to(torch.float32).to(device)


def _array(tensor: Tensor) -> Any:
    """A numpy array; what numpy has no dtype for comes as raw bits."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view("uint16")
    if tensor.element_size() == 1 and tensor.is_floating_point():
        return tensor.view(torch.uint8).numpy()
    return tensor.numpy()
