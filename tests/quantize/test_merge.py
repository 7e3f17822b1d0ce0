"""Sources that are quantized in part: what is left joins them under one config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.plan.model import read_model
from tests.quantize.conftest import Run

MLP = ["--ignore", "self_attn.*"]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in folder.glob("*.safetensors"):
        found |= load_file(file)
    return found


def declared(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())["quantization_config"]
    return found


def schemes(folder: Path) -> dict[str, tuple[int, str]]:
    """What our reader of configs alone says of every linear, the tensors not asked."""
    model = read_model(Checkpoint.open(str(folder)))
    assert model.quant is not None
    return {
        path: (scheme.bits, scheme.kind)
        for param in model.params
        if param.spec.op == "linear"
        for path in param.modules()
        if (scheme := model.quant.scheme_for(path)) is not None
    }


@pytest.mark.parametrize(
    ("first", "second", "kinds"),
    [
        (["--method", "fp8"], ["--method", "rtn"], {(8, "float"), (4, "int")}),
        (["--method", "rtn"], ["--method", "rtn", "--group-size", "64", "--bits", "8"], {(4, "int"), (8, "int")}),
        (["--method", "rtn", "--save-as", "gptq"], ["--method", "rtn", "--save-as", "gptq"], {(4, "int")}),
        (
            ["--method", "rtn", "--save-as", "gptq"],
            ["--method", "rtn", "--save-as", "gptq", "--bits", "8", "--group-size", "64"],
            {(4, "int"), (8, "int")},
        ),
        (["--method", "rtn", "--save-as", "awq", "--asym"], ["--method", "rtn", "--save-as", "awq", "--asym"], None),
        (
            ["--method", "fp8", "--save-as", "fp8", "--scheme", "FP8_TENSOR"],
            ["--method", "fp8", "--save-as", "fp8", "--scheme", "FP8_TENSOR"],
            None,
        ),
    ],
)
def test_what_is_left_is_quantized_and_the_rest_is_as_it_was(
    first: list[str], second: list[str], kinds: Any, demo: Path, tmp_path: Path, run: Run
) -> None:
    once, twice = tmp_path / "once", tmp_path / "twice"
    assert run(demo, "-o", once, *first, *MLP)[0] == 0
    code, result = run(once, "-o", twice, *second)
    assert code == 0, result
    assert result["layers"] == 16  # q, k, v, o of four layers
    before, after = weights(once), weights(twice)
    kept = [name for name in before if ".mlp." in name]
    assert kept and all(torch.equal(before[n].view(torch.uint8), after[n].view(torch.uint8)) for n in kept)
    found = schemes(twice)
    assert len(found) == 28
    if kinds is not None:
        assert set(found.values()) == kinds


def test_the_compressed_tensors_package_resolves_both_groups(demo: Path, tmp_path: Path, run: Run) -> None:
    from compressed_tensors.quantization import QuantizationConfig  # type: ignore[import-untyped]
    from compressed_tensors.utils import match_name  # type: ignore[import-untyped]

    once, twice = tmp_path / "once", tmp_path / "twice"
    assert run(demo, "-o", once, "--method", "fp8", *MLP)[0] == 0
    assert run(once, "-o", twice, "--method", "rtn")[0] == 0
    config = QuantizationConfig(**declared(twice))
    new = next(iter(config.config_groups.values()))
    assert new.weights.num_bits == 4
    assert "model.layers.0.self_attn.q_proj" in new.targets
    assert [group.targets for group in config.config_groups.values()][1:] == [["Linear"]]
    assert not any(match_name("model.layers.0.self_attn.q_proj", entry) for entry in config.ignore)
    assert "lm_head" in config.ignore


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (["--method", "fp8"], ["--method", "rtn", "--save-as", "gptq"], "gptq cannot stand in one config with it"),
        (
            ["--method", "rtn", "--save-as", "awq", "--asym"],
            ["--method", "rtn", "--save-as", "awq", "--asym", "--group-size", "64"],
            "has one scheme for all layers",
        ),
        (["--method", "rtn"], ["--method", "awq", "--save-as", "compressed-tensors"], "AWQ would have to scale"),
    ],
)
def test_what_no_config_can_say_is_refused(
    first: list[str], second: list[str], said: str, demo: Path, tmp_path: Path, run: Run
) -> None:
    assert run(demo, "-o", tmp_path / "once", *first, *MLP)[0] == 0
    code, result = run(tmp_path / "once", "-o", tmp_path / "twice", *second)
    assert code == 1
    assert said in result["error"]
    assert not list(tmp_path.glob("twice*"))


def test_a_format_of_experts_alone_takes_nothing_beside_it(demo: Path, tmp_path: Path, run: Run) -> None:
    """gpt-oss's mxfp4, by what its reader finds: the config is never asked for other linears."""
    from mlload.quant.spec import QuantSpec, Scheme
    from mlload.quantize.merge import refuse_another_family
    from mlload.quantize.recipe import make_recipe

    model = read_model(Checkpoint.open(str(demo)))
    scheme = Scheme("mxfp4", "gpt_oss", 4, "mx", "group", 32)
    from dataclasses import replace

    model = replace(model, quant=QuantSpec("mxfp4", lambda _: scheme, (scheme,), config={"quant_method": "mxfp4"}))
    from mlload.checkpoint.finding import MlloadError

    with pytest.raises(MlloadError, match="describes experts alone"):
        refuse_another_family(model, make_recipe("mxfp4"), {"model.layers.0.mlp.experts.gate_up_proj": scheme})


@pytest.mark.slow
def test_gptq_goes_on_behind_layers_that_are_quantized(demo: Path, tmp_path: Path, run: Run) -> None:
    once, twice = tmp_path / "once", tmp_path / "twice"
    assert run(demo, "-o", once, "--method", "rtn", "--save-as", "gptq", *MLP)[0] == 0
    words = ["--method", "gptq", "--samples", "4", "--seq-len", "32"]
    code, result = run(once, "-o", twice, *words)
    assert code == 0, result
    assert len(schemes(twice)) == 28
