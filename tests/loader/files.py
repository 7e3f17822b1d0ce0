"""Checkpoints with random bytes in every tensor that a config (and a quantization) asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from mlload import profiles
from mlload.checkpoint.checkpoint import Checkpoint
from mlload.loader.destination import Destination
from mlload.loader.dtypes import torch_dtype
from mlload.loader.reads import own_shapes
from mlload.plan.mesh import Mesh
from mlload.plan.model import Model, read_model
from mlload.plan.plan import Plan, make_plan
from tests.checkpoint.build import raw_safetensors
from tests.plan.tiny_models import model, tensors_of


def write_random(
    folder: Path, config: dict[str, Any], quant: str | None = None, seed: int = 0, *, aligned: bool = False
) -> dict[str, bytes]:
    """Files of the model in two shards; the bytes of every tensor. aligned: the data begin at a multiple of 8 bytes."""
    expected = tensors_of(model(folder, config, assume_quant=quant))
    rng = np.random.default_rng(seed)
    data = {name: rng.bytes(ref.nbytes) for name, ref in expected.items() if not ref.name.startswith("model.layers.9")}
    names = list(data)
    for number, part in enumerate((names[::2], names[1::2])):
        header: dict[str, Any] = {}
        at = 0
        for name in part:
            size = len(data[name])
            header[name] = {
                "dtype": expected[name].dtype,
                "shape": expected[name].shape,
                "data_offsets": [at, at + size],
            }
            at += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8 if aligned else 0)
        raw = raw_safetensors(text, b"".join(data[name] for name in part))
        (folder / f"model-0000{number + 1}-of-00002.safetensors").write_bytes(raw)
    weight_map = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return data


def planned(folder: Path, mesh: Mesh, quant: str | None = None) -> Plan:
    of: Model = read_model(Checkpoint.open(str(folder)), assume_quant=quant)
    return make_plan(of, profiles.load("native", None), mesh)


def empty_destinations(plan: Plan, rank: int, dtype: torch.dtype | None = None) -> dict[str, Destination]:
    """One parameter for each of the rank's own tensors, in file dtype or another."""
    tensors = plan.model.checkpoint.tensors
    found = {}
    for name, (shape, _) in own_shapes(plan, rank).items():
        kept = dtype or torch_dtype(tensors[name].dtype)
        param = nn.Parameter(torch.zeros(shape, dtype=kept), requires_grad=False)
        found[name] = Destination(param, shape)
    return found


def raw(tensor: torch.Tensor) -> bytes:
    contiguous = tensor.detach().contiguous()
    return (contiguous.reshape(1) if contiguous.dim() == 0 else contiguous).view(torch.uint8).numpy().tobytes()
