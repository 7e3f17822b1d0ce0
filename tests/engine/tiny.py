"""Tiny random checkpoints as transformers itself saves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from mlload import profiles
from mlload.checkpoint.checkpoint import Checkpoint
from mlload.plan.mesh import Mesh
from mlload.plan.model import read_model
from mlload.plan.plan import Plan, make_plan


def save(folder: Path, config: dict[str, Any], seed: int = 0, auto: str = "AutoModelForCausalLM") -> Any:
    """A model of the config with random weights of a size that makes logits differ, saved to the folder."""
    import transformers

    fields = {key: value for key, value in config.items() if key not in ("model_type", "architectures")}
    parsed = transformers.AutoConfig.for_model(config["model_type"], **fields)
    torch.manual_seed(seed)
    build: Any = getattr(transformers, auto).from_config
    made: Any = build(parsed, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, param in made.named_parameters():
            noise = torch.randn(param.shape, generator=generator)
            param.copy_(1 + 0.1 * noise if param.dim() == 1 and "bias" not in name else 0.15 * noise)
    made.eval().save_pretrained(folder)
    return made


def planned(folder: Path, tp: int = 1, dtype: str = "float32", kv_dtype: str = "auto", ep: bool = False) -> Plan:
    model = read_model(Checkpoint.open(str(folder)))
    return make_plan(model, profiles.load("native", None), Mesh(tp, ep=ep), dtype=dtype, kv_dtype=kv_dtype)


def config_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found
