"""Static scales, a cache's scales and smoothing on tiny models of several kinds: written, valid, and near the source.

The yardstick is the same method without data: stored scales change no weight, and smoothing, which is proven to change
no output, moves the rounding error about but does not double it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from mlload.cli.app import main
from tests.quantize.conftest import Run
from tests.quantize.tiny import config, dequantized, relative, said, text, write

SCHEMES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # with data, without
    "fp8": (("--scheme", "FP8_STATIC"), ("--scheme", "FP8_TENSOR")),
    "int8": (("--smooth", "0.5"), ()),
    "nvfp4": (("--scheme", "NVFP4"), ("--scheme", "NVFP4A16")),
}
KINDS = ("qwen3", "gemma2", "phi3", "falcon", "opt", "mixtral", "qwen2_moe", "deepseek_v3")
FAST = {"mixtral"}
LATENT = {"deepseek_v3"}


def kinds() -> list[Any]:
    return [pytest.param(name, id=name, marks=() if name in FAST else pytest.mark.slow) for name in KINDS]


@pytest.mark.transformers
@pytest.mark.parametrize("name", kinds())
def test_written_valid_and_near_the_source(
    name: str, tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, data = tmp_path / "model", text(tmp_path / "text.txt")
    settings = config(name)
    if "num_experts_per_tok" in settings:
        settings["num_experts_per_tok"] = 4
    write(folder, settings)
    original = safetensors.torch.load_file(folder / "model.safetensors")
    whole = said(folder, original, tmp_path / "scratch")
    attention = {key.rpartition(".")[0].rpartition(".")[0] for key in original if ".k_proj.weight" in key}
    cached = name not in LATENT and all(path.endswith("self_attn") for path in attention) and attention
    for kind, (words, plain) in SCHEMES.items():
        out, twin = tmp_path / kind, tmp_path / f"{kind}-plain"
        assert run(folder, "-o", twin, "--method", kind, *plain)[0] == 0
        more = ("--kv-cache-scheme", "fp8") if cached else ()
        code, result = run(
            folder, "-o", out, "--method", kind, *words, *more, "--calib", data, "--samples", 8, "--seq-len", 32
        )
        assert code == 0, result
        paths = [linear["path"] for linear in result["linears"]]
        after = safetensors.torch.load_file(out / "model.safetensors")
        suffix = {"fp8": "input_scale", "nvfp4": "input_global_scale"}.get(kind)
        for path in paths:
            assert suffix is None or float(after[f"{path}.{suffix}"]) > 0
        assert sum(key.endswith((".k_scale", ".v_scale")) for key in after) == (2 * len(attention) if cached else 0)
        assert main(["validate", str(out)]) == 0
        capsys.readouterr()
        found, expected = dequantized(out), dequantized(twin)
        if kind != "int8":
            # An expert's down shares a scale with its gate and up where no data tells that they see different inputs.
            plainly = [f"{path}.weight" for path in paths if ".experts." not in path]
            assert plainly
            assert all(torch.equal(found[weight], expected[weight]) for weight in plainly)
            continue
        without, lost = (relative(said(folder, w, tmp_path / "scratch"), whole) for w in (expected, found))
        assert 0 < lost < 2 * without, f"smoothed loses {lost:.4f}, without {without:.4f}"


@pytest.mark.transformers
def test_latent_attention_has_no_scales_of_its_own(tmp_path: Path, run: Run) -> None:
    folder, data = tmp_path / "model", text(tmp_path / "text.txt")
    write(folder, config("deepseek_v3"))
    code, result = run(
        folder, "-o", tmp_path / "out", "--method", "fp8", "--kv-cache-scheme", "fp8", "--calib", data, "--seq-len", 8
    )
    assert code != 0
    assert "latent attention" in result["error"]
    assert not (tmp_path / "out.partial").exists()
