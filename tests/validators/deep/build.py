"""Real files with sound numbers in every format, written by safetensors; tests damage them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from mlload import profiles
from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import Finding
from mlload.plan.mesh import Mesh
from mlload.plan.model import read_model
from mlload.plan.plan import Plan, make_plan
from mlload.validators.deep.judge import Judged, judge_contents
from mlload.validators.deep.roles import roles
from mlload.validators.deep.scan import Asked, Scan, scan

DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "I32": torch.int32,
    "I64": torch.int64,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
}
Shapes = Mapping[str, tuple[str, tuple[int, ...]]]


def sound(shapes: Shapes, seed: int = 0) -> dict[str, torch.Tensor]:
    """Numbers as a healthy checkpoint has them: weights around 0, scales that differ, zero points of 8."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (dtype, shape) in shapes.items():
        last = name.rsplit(".", 1)[-1]
        if last == "g_idx":
            value = torch.arange(shape[0], dtype=torch.int32) // 128
        elif last == "qzeros":
            value = torch.full(shape, 0x77777777, dtype=torch.int32)
        elif last == "weight_shape":
            value = torch.tensor([1, 1])
        elif "scale" in last:
            value = (torch.rand(shape, generator=generator) * 0.01 + 0.02).to(DTYPES[dtype])
        elif dtype == "I32":
            value = torch.randint(-(2**31), 2**31, shape, generator=generator, dtype=torch.int64).to(torch.int32)
        elif dtype == "U8":
            value = torch.randint(0, 256, shape, generator=generator, dtype=torch.int64).to(torch.uint8)
        else:
            value = (torch.randn(shape, generator=generator) * 0.02).to(DTYPES[dtype])
        tensors[name] = value
    return tensors


def write(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], quant: Mapping[str, Any] | None = None
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    whole = {**config, "quantization_config": dict(quant)} if quant is not None else dict(config)
    (folder / "config.json").write_text(json.dumps(whole))
    save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def scanned(folder: Path, hashed: frozenset[str] = frozenset(), **options: Any) -> tuple[Scan, Plan]:
    model = read_model(Checkpoint.open(str(folder)))
    plan = make_plan(model, profiles.load("vllm", "0.33"), Mesh(), capability=(9, 0), **options)
    return scan(model.checkpoint, roles(model), Asked(True, hashed)), plan


def judged(folder: Path, **options: Any) -> Judged:
    """What the rules on contents say of a folder. options: of the plan."""
    seen, plan = scanned(folder, **options)
    return judge_contents(seen, plan.model.checkpoint, plan)


def only(found: Judged) -> Finding:
    assert found.unknowns == ()
    assert len(found.findings) == 1, [(finding.code, finding.message) for finding in found.findings]
    return found.findings[0]
