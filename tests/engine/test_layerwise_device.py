"""Calibration on a device: the layer, its samples and everything computed from them are on it, and nothing is mixed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.quantize.recipe import make_recipe
from mlload.quantize.run import Options, run
from tests.engine.far_device import FAR, FarDevice, Mixed
from tests.quantize.tiny import GROUP, calibration, config, write

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "awq": ("llama", {"method": "awq", "group_size": GROUP}),
    "gptq": ("llama", {"method": "gptq", "group_size": GROUP}),
    "gptq sequential": ("llama", {"method": "gptq", "group_size": GROUP, "sequential": True}),
    "awq, experts": ("qwen3_moe", {"method": "awq", "group_size": GROUP}),
    "gptq, experts": ("qwen3_moe", {"method": "gptq", "group_size": GROUP, "sequential": True}),
    "awq, fused": ("phi3", {"method": "awq", "group_size": GROUP}),
    "smooth": ("llama", {"method": "int8", "smooth": 0.5}),
    "fp8": ("llama", {"method": "fp8", "scheme": "FP8_STATIC", "kv_cache": True}),
}


def written(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "awq" else (pytest.mark.slow,)) for name in METHODS]
)
def test_a_run_on_a_device_mixes_nothing_and_writes_the_same(name: str, tmp_path: Path) -> None:
    kind, words = METHODS[name]
    source = tmp_path / "source"
    write(source, config(kind))
    found = {}
    for device in ("cpu", str(FAR)):
        data = calibration()
        object.__setattr__(data, "device", device)
        out = tmp_path / "out"
        with FarDevice() as far:
            options = Options(output=str(out), calibration=data, evaluate=2)
            result = run(Checkpoint.open(str(source)), make_recipe(**words), options)
        assert result.check is not None and not result.check.problems
        assert (far.places.operations > 1000) == (device != "cpu"), "nothing was computed there"
        found[device] = written(out)
        shutil.rmtree(out)
    assert found["cpu"] == found[str(FAR)]


def test_the_device_that_is_not_there_refuses_what_a_gpu_would() -> None:
    with FarDevice():
        there, here = torch.ones(3, device=FAR), torch.ones(3)
        assert there.device == (there * 2).device == there.new_ones(1).device == FAR and here.device.type == "cpu"
        for mixed in (lambda: there + here, lambda: there.numpy(), lambda: here[there.long()], lambda: there @ here):
            with pytest.raises(Mixed):
                mixed()
        assert (there + here.to(FAR)).cpu().tolist() == [2, 2, 2]
        assert there[torch.tensor([0, 2])].device == FAR
