"""Checkpoints that AutoAWQ, GPTQModel, auto-round and llm-compressor wrote (tools/independent_checkpoints.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mlload.engine.native import NativeEngine
from tests.engine.independent import grouped, kept_activations, weight_of
from tests.engine.ranks import on_ranks
from tests.engine.tiny import config_of, planned

pytestmark = pytest.mark.slow

DATA = Path(__file__).parents[1] / "data" / "independent"
FOLDERS = sorted(path.name for path in DATA.iterdir() if path.is_dir())
IDS = torch.tensor([[3, 17, 42, 5, 60, 9, 31], [8, 2, 55, 23, 11, 47, 30]])
PACKED = ("qweight", "weight_packed", "weight_scale")


def test_every_tool_is_there() -> None:
    assert {"autoawq", "auto-round", "gptq-4", "gptq-3", "gptq-act-order", "llmc-W4A16_ASYM"} <= set(FOLDERS)


@pytest.mark.parametrize("name", FOLDERS)
def test_layers_multiply_as_float64_does(name: str) -> None:
    config = config_of(DATA / name)["quantization_config"]
    state = load_file(DATA / name / "model.safetensors")
    engine = NativeEngine(planned(DATA / name))
    engine.build()
    engine.load()
    assert engine.weight_bytes() == engine.predicted_bytes()
    engine.repack()
    seen = 0
    for path, tensors in grouped(state).items():
        if not tensors.keys() & set(PACKED):
            continue
        weight = weight_of(tensors, config)
        layer = engine.model.get_submodule(path)
        assert weight.shape == (layer.out_features, layer.in_features)
        x = kept_activations(5, weight.shape[1], config, tensors)
        want = x.double() @ weight.T
        assert float((layer(x).double() - want).norm() / want.norm()) < 3e-6, path
        seen += 1
    assert seen == 7
    assert all(use.packed for uses in engine.kernels().values() for use in uses)


@pytest.mark.parametrize("name", [name for name in FOLDERS if (DATA / name / "logits.npy").exists()])
def test_logits_are_what_transformers_has_from_these_files(name: str) -> None:
    want = torch.from_numpy(np.load(DATA / name / "logits.npy"))
    have = NativeEngine(planned(DATA / name)).start().logits(IDS)
    assert float((have - want).norm() / want.norm()) < 2e-3


@pytest.mark.parametrize("name", FOLDERS)
def test_two_ranks_say_what_one_says(name: str) -> None:
    plan = planned(DATA / name, 2)
    if plan.violations:
        pytest.skip(plan.violations[0].message)
    want = NativeEngine(planned(DATA / name)).start().logits(IDS)
    for have in on_ranks(2, lambda rank, group: NativeEngine(plan, rank, group).start().logits(IDS)):  # type: ignore[arg-type]
        assert float((have - want).norm() / want.norm()) < 2e-5


@pytest.mark.parametrize("name", [name for name in FOLDERS if name in ("gptq-4", "autoawq")])
def test_bf16_runs_on_torchs_four_bit_product(name: str) -> None:
    """At group 32 and N a multiple of 16 the fast operator takes it; its own rounding is bf16's."""
    config = config_of(DATA / name)["quantization_config"]
    state = grouped(load_file(DATA / name / "model.safetensors"))
    engine = NativeEngine(planned(DATA / name, dtype="bfloat16")).start()
    path = "model.layers.0.mlp.down_proj"
    assert {use.kernel for use in engine.kernels()["down_proj"]} == {"int4pack"}
    weight = weight_of(state[path], config)
    x = torch.randn(3, weight.shape[1], generator=torch.Generator().manual_seed(1)).bfloat16()
    want = x.double() @ weight.T
    assert float((engine.model.get_submodule(path)(x).double() - want).norm() / want.norm()) < 1e-2
