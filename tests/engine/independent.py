"""What the bytes of other tools' checkpoints stand for, in float64, written out from the formats' own descriptions.

Nothing of mlload takes part. N = out_features, K = in_features, G = group size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column of eight that each nibble holds, lowest first
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def fields(words: Tensor, bits: int, dim: int) -> Tensor:
    """int32 words along `dim` as one stream of bits, lowest first -> fields of `bits` bits, int64."""
    rows = words.movedim(dim, -1).to(torch.int64) & 0xFFFFFFFF
    stream = ((rows[..., None] >> torch.arange(32)) & 1).flatten(-2)
    stream = stream[..., : stream.shape[-1] // bits * bits].reshape(*rows.shape[:-1], -1, bits)
    return (stream << torch.arange(bits)).sum(-1).movedim(-1, dim)


def awq(tensors: Mapping[str, Tensor], group: int) -> Tensor:
    def columns(words: Tensor) -> Tensor:
        nibbles = fields(words, 4, 1).reshape(words.shape[0], -1, 8)
        ordered = torch.empty_like(nibbles)
        ordered[..., list(AWQ_ORDER)] = nibbles
        return ordered.flatten(1).double()

    zero, scale = columns(tensors["qzeros"]), tensors["scales"].double()
    spread = [part.repeat_interleave(group, 0) for part in (zero, scale)]
    return ((columns(tensors["qweight"]) - spread[0]) * spread[1]).T


def gptq(tensors: Mapping[str, Tensor], bits: int, *, v2: bool = False) -> Tensor:
    """v1 stores zero points less one; without g_idx groups are in order."""
    scale = tensors["scales"].double()
    k = tensors["qweight"].shape[0] * 32 // bits
    index = tensors["g_idx"].long() if "g_idx" in tensors else torch.arange(k) // (k // scale.shape[0])
    zero = fields(tensors["qzeros"], bits, 1)[:, : scale.shape[1]]
    zero = zero if v2 else (zero + 1) % (1 << bits)
    codes = fields(tensors["qweight"], bits, 0)[: len(index)]
    return ((codes - zero[index]).double() * scale[index]).T


def compressed(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Tensor:
    """compressed-tensors; config: its block of config.json with a single group."""
    (entry,) = config["config_groups"].values()
    args = entry["weights"]
    bits = args["num_bits"]
    if "weight_packed" in tensors and args["type"] == "float":
        pairs = tensors["weight_packed"].to(torch.int64)
        codes = torch.stack([pairs & 15, pairs >> 4], -1).flatten(1)
        scale = tensors["weight_scale"]
        if "weight_global_scale" in tensors:
            step = scale.double() / tensors["weight_global_scale"].double()
        else:
            step = torch.exp2(scale.view(torch.uint8).double() - 127)
        return E2M1[codes] * step.repeat_interleave(args["group_size"], 1)
    if "weight_packed" in tensors:
        n, k = tensors["weight_shape"].tolist()
        values = fields(tensors["weight_packed"], bits, 1)[:, :k].double()
        if "weight_zero_point" in tensors:
            zero = fields(tensors["weight_zero_point"], bits, 0)[:n].double()
        else:
            zero = torch.full((n, 1), 2.0 ** (bits - 1), dtype=torch.float64)
        zero = zero.repeat_interleave(k // zero.shape[1], 1)
    else:
        values, zero = tensors["weight"].double(), torch.zeros((), dtype=torch.float64)
    scale = tensors["weight_scale"]
    wide = torch.exp2(scale.double() - 127) if scale.dtype == torch.uint8 else scale.double()
    if args["strategy"] == "block":
        rows, columns = args["block_structure"]
        wide = wide.repeat_interleave(rows, 0)[: values.shape[0]].repeat_interleave(columns, 1)[:, : values.shape[1]]
    elif wide.dim() == 2 and wide.shape[1] > 1:
        wide = wide.repeat_interleave(values.shape[1] // wide.shape[1], 1)
    elif wide.dim() == 1 and wide.numel() > 1:
        wide = wide[:, None]
    return (values - zero) * wide


def weight_of(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Tensor:
    """W float64 [N, K] of one linear; tensors by suffix, config the `quantization_config` of the checkpoint."""
    method = config["quant_method"]
    if method == "compressed-tensors":
        return compressed(tensors, config)
    packing = str(config.get("packing_format", ""))
    if method == "awq" or packing.endswith("awq"):
        return awq(tensors, config["group_size"])
    return gptq(tensors, config["bits"], v2="v2" in str(config.get("checkpoint_format", "")))


def grouped(state: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Tensors of each module of a checkpoint, by suffix."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in state.items():
        path, _, suffix = name.rpartition(".")
        found.setdefault(path, {})[suffix] = tensor
    return found


def kept_activations(rows: int, k: int, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Tensor:
    """float32 [rows, K] that the activation's own quantization keeps as they are: its codes, times its scale."""
    generator = torch.Generator().manual_seed(k)
    x = torch.randint(-120, 121, (rows, k), generator=generator).float()
    (entry,) = config["config_groups"].values() if "config_groups" in config else ({},)
    inputs = entry.get("input_activations") or {}
    if inputs.get("type") == "float":
        x = x.to(torch.float8_e4m3fn).float()
        x[:, ::16] = 448
    elif inputs.get("symmetric") is False and inputs.get("dynamic") is True:
        x = x.clamp(-55, 127)
        x[:, ::16], x[:, 8::16] = 200, -55  # 256 steps of 1, the zero point is -73
    else:
        x[:, ::16] = 127
    if inputs.get("dynamic") is False and "input_scale" in tensors:
        x = x * tensors["input_scale"].float().max()
    return x
