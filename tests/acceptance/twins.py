"""Quantized twins of a bf16 folder by plain round-to-nearest, in arithmetic of their own.

N = out_features, K = in_features, G = 64: it divides every width of the real model, 128 does not.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

G = 64
# AWQ's order of the eight nibbles of an int32; the other formats count up.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
PLAIN_ORDER = tuple(range(8))

Tensors = dict[str, torch.Tensor]


def grouped(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[N, K] -> codes 0..15 as [N, K] int32 about a zero of 8, and scales [N, K / G] in fp32 that fit fp16."""
    groups = weight.float().reshape(weight.shape[0], -1, G)
    scale = (groups.abs().amax(-1, keepdim=True) / 7).clamp(min=1e-6).half().float()
    codes = (groups / scale).round().clamp(-8, 7) + 8
    return codes.flatten(1).int(), scale.squeeze(-1)


def packed(codes: torch.Tensor, dim: int, order: tuple[int, ...] = PLAIN_ORDER) -> torch.Tensor:
    """Eight codes along `dim` as one int32."""
    eights = codes.movedim(dim, -1)
    eights = eights.reshape(*eights.shape[:-1], -1, 8).to(torch.int64)
    words = torch.zeros(eights.shape[:-1], dtype=torch.int64)
    for position, source in enumerate(order):
        words |= eights[..., source] << (4 * position)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32).movedim(-1, dim).contiguous()


def awq(weight: torch.Tensor) -> Tensors:
    codes, scale = grouped(weight)
    zeros = torch.full_like(scale, 8).int()
    return {
        "qweight": packed(codes.t(), 1, AWQ_ORDER),
        "qzeros": packed(zeros.t(), 1, AWQ_ORDER),
        "scales": scale.t().half(),
    }


def gptq(weight: torch.Tensor) -> Tensors:
    codes, scale = grouped(weight)
    # GPTQ's first layout stores a zero point minus one.
    zeros = torch.full_like(scale, 7).int()
    return {
        "qweight": packed(codes.t(), 0),
        "qzeros": packed(zeros.t(), 1),
        "scales": scale.t().half(),
        "g_idx": (torch.arange(weight.shape[1]) // G).int(),
    }


def w4a16(weight: torch.Tensor) -> Tensors:
    codes, scale = grouped(weight)
    return {
        "weight_packed": packed(codes, 1),
        "weight_scale": scale.bfloat16(),
        "weight_shape": torch.tensor(list(weight.shape)),
    }


def int8(weight: torch.Tensor) -> Tensors:
    scale = weight.float().abs().amax(1, keepdim=True) / 127
    return {
        "weight": (weight.float() / scale).round().clamp(-127, 127).to(torch.int8),
        "weight_scale": scale.bfloat16(),
    }


def compressed(form: str, weights: dict[str, Any], activations: dict[str, Any] | None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


CONFIGS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": G, "zero_point": True, "version": "gemm"},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": G, "desc_act": False, "sym": True},
    "w4a16": compressed(
        "pack-quantized",
        {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": G, "dynamic": False},
        None,
    ),
    "int8": compressed(
        "int-quantized",
        {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
        {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True},
    ),
}
FORMATS: dict[str, Callable[[torch.Tensor], Tensors]] = {"awq": awq, "gptq": gptq, "w4a16": w4a16, "int8": int8}


def twin(source: Path, name: str) -> Path:
    """The twin of `source` in a format, beside it; made once."""
    folder = source.with_name(f"{source.name}-rtn-{name}")
    if folder.is_dir():
        return folder
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        write(source, name, beside)
        beside.chmod(0o755)
        beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def write(source: Path, name: str, folder: Path) -> None:
    tensors: Tensors = {}
    for key, value in load_file(source / "model.safetensors").items():
        if key.endswith("_proj.weight"):
            made = FORMATS[name](value)
            tensors |= {f"{key.removesuffix('weight')}{suffix}": part.contiguous() for suffix, part in made.items()}
        else:
            tensors[key] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for file in source.iterdir():
        if file.is_file() and file.name not in ("model.safetensors", "config.json"):
            shutil.copy(file, folder)
    config = json.loads((source / "config.json").read_text()) | {"quantization_config": CONFIGS[name]}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
