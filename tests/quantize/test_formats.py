"""Every layout that is written, read by other people's code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.quantize.conftest import Run

LINEAR = "model.layers.1.mlp.down_proj"
# Relative errors of round-to-nearest on Gaussian-like weights, from the width of a step; with room for tails.
BOUNDS = {"fp8": 0.04, "int8": 0.015, "mxfp4": 0.15, "nvfp4": 0.12, "rtn": 0.13}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in folder.glob("*.safetensors"):
        found |= load_file(file)
    return found


def config_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def decompressed(folder: Path, module: str) -> torch.Tensor:
    """By the compressed-tensors package."""
    from compressed_tensors.compressors import BaseCompressor  # type: ignore[import-untyped]
    from compressed_tensors.quantization import QuantizationScheme  # type: ignore[import-untyped]

    config = config_of(folder)["quantization_config"]
    group = config["config_groups"]["group_0"]
    scheme = QuantizationScheme(**group)
    compressor: Any = BaseCompressor.get_value_from_registry(group["format"])
    mine = {k.removeprefix(module + "."): v for k, v in weights(folder).items() if k.startswith(module + ".")}
    return compressor.decompress(mine, scheme)["weight"].float()  # type: ignore[no-any-return]


@pytest.mark.parametrize("method", ["fp8", "int8", "mxfp4", "nvfp4", "rtn"])
def test_the_compressed_tensors_package_reads_what_is_written(
    method: str, demo: Path, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "out"
    code, result = run(demo, "-o", out, "--method", method)
    assert code == 0, result
    original = weights(demo)[LINEAR + ".weight"].float()
    back = decompressed(out, LINEAR)
    error = float((back - original).norm() / original.norm())
    assert error < BOUNDS[method]
    # What our own reader says of the same bytes.
    assert abs(result["check"]["relative_error"][LINEAR] - error) < 2e-3
    assert result["layers"] == 28


def test_everything_else_goes_along_byte_for_byte(demo: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    assert run(demo, "-o", out, "--method", "rtn")[0] == 0
    before, after = weights(demo), weights(out)
    plain = [name for name in before if not name.endswith("_proj.weight")]
    assert plain
    for name in plain:
        assert torch.equal(before[name].view(torch.uint8), after[name].view(torch.uint8))
    for file in demo.iterdir():
        if file.suffix not in (".safetensors",) and file.name not in ("config.json",) and "index" not in file.name:
            assert (out / file.name).read_bytes() == file.read_bytes()
    was, now = config_of(demo), config_of(out)
    now.pop("quantization_config")
    assert was == now


def unpacked_awq(part: dict[str, torch.Tensor], group: int) -> torch.Tensor:
    """AutoAWQ's documented layout by plain arithmetic: column 8c + (0, 2, 4, 6, 1, 3, 5, 7)[i] in nibble i."""
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def columns(words: torch.Tensor) -> torch.Tensor:
        found = torch.zeros(words.shape[0], words.shape[1] * 8)
        for nibble, column in enumerate(order):
            found[:, column::8] = ((words.long() >> (4 * nibble)) & 15).float()
        return found

    codes, zeros = columns(part["qweight"]), columns(part["qzeros"])
    spread = [t.repeat_interleave(group, 0) for t in (zeros, part["scales"].float())]
    return ((codes - spread[0]) * spread[1]).T


def test_awq_folders_have_both_configs_and_autoawq_s_layout(demo: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    assert run(demo, "-o", out, "--method", "rtn", "--save-as", "awq", "--asym", "--group-size", 64)[0] == 0
    side = json.loads((out / "quant_config.json").read_text())
    assert {key: side[key] for key in ("w_bit", "q_group_size", "zero_point", "version")} == {
        "w_bit": 4,
        "q_group_size": 64,
        "zero_point": True,
        "version": "GEMM",
    }
    config = config_of(out)["quantization_config"]
    assert (config["quant_method"], config["bits"], config["group_size"]) == ("awq", 4, 64)
    part = {k.removeprefix(LINEAR + "."): v for k, v in weights(out).items() if k.startswith(LINEAR + ".")}
    original = weights(demo)[LINEAR + ".weight"].float()
    assert float((unpacked_awq(part, 64) - original).norm() / original.norm()) < BOUNDS["rtn"]


def test_gptq_folders_have_both_configs_and_v1_zeros(demo: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    assert run(demo, "-o", out, "--method", "rtn", "--save-as", "gptq")[0] == 0
    side = json.loads((out / "quantize_config.json").read_text())
    assert (side["bits"], side["group_size"], side["sym"], side["desc_act"]) == (4, 128, True, False)
    part = {k.removeprefix(LINEAR + "."): v for k, v in weights(out).items() if k.startswith(LINEAR + ".")}
    # v1 keeps the zero point less one: 7 in every nibble.
    assert set(part["qzeros"].flatten().tolist()) == {0x77777777}
    words = part["qweight"].long()
    codes = torch.stack([(words >> (4 * i)) & 15 for i in range(8)], 1).reshape(-1, words.shape[1]).float()
    back = ((codes - 8) * part["scales"].float().repeat_interleave(128, 0)).T
    original = weights(demo)[LINEAR + ".weight"].float()
    assert float((back - original).norm() / original.norm()) < BOUNDS["rtn"] + 0.02


@pytest.mark.parametrize("scheme", ["FP8_BLOCK", "FP8_TENSOR"])
def test_hf_fp8(scheme: str, demo: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    # The demo's k and v are one and a half blocks long, which no block scale of the fused layer could follow.
    left = ["--ignore", "self_attn.*"] if scheme == "FP8_BLOCK" else []
    code, result = run(demo, "-o", out, "--method", "fp8", "--scheme", scheme, "--save-as", "fp8", *left)
    assert code == 0, result
    config = config_of(out)["quantization_config"]
    after, original = weights(out), weights(demo)[LINEAR + ".weight"].float()
    codes = after[LINEAR + ".weight"].float()
    if scheme == "FP8_BLOCK":
        assert config["weight_block_size"] == [128, 128]
        scale = after[LINEAR + ".weight_scale_inv"].repeat_interleave(128, 0).repeat_interleave(128, 1)
    else:
        scale = after[LINEAR + ".weight_scale"]
        q, k = (after[f"model.layers.0.self_attn.{n}_proj.weight_scale"] for n in "qk")
        assert torch.equal(q, k), "parts of a fused layer share the scale of a tensor"
    assert float((codes * scale - original).norm() / original.norm()) < 0.05


def test_parts_of_a_fused_layer_share_nvfp4_s_global_scale(demo: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    assert run(demo, "-o", out, "--method", "nvfp4")[0] == 0
    after = weights(out)
    for parts in (("self_attn.q", "self_attn.k", "self_attn.v"), ("mlp.gate", "mlp.up")):
        scales = {float(after[f"model.layers.2.{part}_proj.weight_global_scale"]) for part in parts}
        assert len(scales) == 1
