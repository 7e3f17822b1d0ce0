"""AWQ and GPTQ on tiny models of many kinds: what they write loads again, and loses less than plain rounding does.

The yardstick is arithmetic on the float model alone: every quantized linear rounded to the nearest, group by group, and
the error of the logits that transformers then gives. Both methods choose among grids that contain that one (AWQ a
scale of one, both a range of one), or spread its errors, so that no linear loses more by its own measure; a tenth is
for what linears do to one another. At 8 bits the errors are small enough to add up in squares, and one scale of one
group that is four times what it should be is a multiple of all others together: the twin must break the bound. Every
expert is chosen here: a choice that flips is a step that no bound holds for (test_experts has real choices).
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from mlload.cli.app import main
from mlload.engine.native import NativeEngine
from mlload.quant.layers.group import ALONE
from tests.engine.tiny import planned
from tests.quantize.conftest import Run
from tests.quantize.tiny import (
    GROUP,
    TOKENS,
    config,
    dequantized,
    naively_rounded,
    relative,
    rewritten,
    said,
    text,
    write,
)

# name in tests.engine.architectures -> what it stands for
KINDS = {
    "llama": "grouped-query attention",
    "llama tied": "tied head, biases everywhere",
    "mistral": "sliding window",
    "qwen2": "biased qkv",
    "qwen3": "normed heads",
    "gemma2": "norms before and after, softcaps, alternating windows, norms stored less one",
    "gemma3_text": "the same with normed heads",
    "granite": "scaled residuals",
    "olmo2": "norms after",
    "starcoder2": "LayerNorm, no gate",
    "phi3": "fused qkv and gate_up",
    "gpt_neox": "qkv fused head by head, parallel attention",
    "falcon": "qkv fused group by group, parallel attention",
    "phi": "parallel attention, partial rotary",
    "gptj": "parallel attention, one norm",
    "cohere": "parallel attention, interleaved rotary",
    "opt": "learned positions",
    "bloom": "alibi",
    "glm4": "fused gate_up, norms around",
    "mixtral": "experts",
    "qwen2_moe": "experts and a gated shared one",
    "qwen3_moe": "experts, normed heads",
    "glm4_moe": "experts chosen by sigmoid, a dense layer first",
    "deepseek_v2": "latent attention, experts, a shared one",
    "deepseek_v3": "latent attention, experts in groups with a bias",
    "gpt_oss": "attention sinks; experts stacked on disk are left as they are",
    "granitemoe": "experts stacked on disk",
    "lfm2": "convolutions among attention",
    "jamba": "Mamba layers, experts",
}
# The default suite has one of each family of difficulties, the others are slow.
FAST = {"mixtral", "deepseek_v3"}
SLACK = 1.1


def kinds() -> list[Any]:
    return [pytest.param(name, id=name, marks=() if name in FAST else pytest.mark.slow) for name in KINDS]


@pytest.mark.transformers
@pytest.mark.parametrize("name", kinds())
def test_loads_again_and_loses_less_than_rounding(
    name: str, tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, data = tmp_path / "model", text(tmp_path / "text.txt")
    settings = config(name)
    if "num_experts_per_tok" in settings:
        settings["num_experts_per_tok"] = 4
    write(folder, settings)
    original = safetensors.torch.load_file(folder / "model.safetensors")
    whole = said(folder, original, tmp_path / "scratch")
    for method, bits in (("awq", 4), ("gptq", 4), ("awq", 8), ("gptq", 8)):
        out = tmp_path / f"{method}-{bits}"
        # No engine has a kernel for experts of 8 bits with zero points.
        zeros = "--asym" if bits == 4 else "--sym"
        scheme = ("--bits", bits, "--group-size", GROUP, zeros, "--save-as", "compressed-tensors")
        code, result = run(
            folder, "-o", out, "--method", method, *scheme, "--calib", data, "--samples", 16, "--seq-len", 32
        )
        assert code == 0, result
        paths = [linear["path"] for linear in result["linears"]]
        assert result["check"]["planned"] == result["check"]["quantized"] == len(paths)
        assert all(0 <= linear["output_error"] < 0.5 for linear in result["linears"])
        assert main(["validate", str(out)]) == 0
        capsys.readouterr()

        naive = {
            name: naively_rounded(tensor, bits, symmetric=bits == 8)
            if name.removesuffix(".weight") in paths
            else tensor
            for name, tensor in original.items()
        }
        bound = SLACK * relative(said(folder, naive, tmp_path / "scratch"), whole)
        there = said(folder, dequantized(out), tmp_path / "scratch")
        lost = relative(there, whole)
        assert 0 < lost < bound, f"{method} at {bits} bits loses {lost:.4f}, rounding {bound / SLACK:.4f}"
        ours = NativeEngine(planned(out), 0, ALONE).start().logits(TOKENS)
        assert relative(ours, there) < 0.1 * bound, "the packed weights run as what they stand for"
        if bits == 8:
            one_wrong_scale_shows(folder, out, paths, whole, bound, tmp_path)


def one_wrong_scale_shows(
    folder: Path, out: Path, paths: list[str], whole: Tensor, bound: float, scratch: Path
) -> None:
    """Of the last linear, and of the last expert's."""
    last = [next(p for p in reversed(paths) if "experts." not in p)]
    last += [p for p in paths if "experts." in p and "shared" not in p][-1:]
    for path in last:
        twin = scratch / "twin"
        shutil.copytree(out, twin)
        rewritten(twin, partial(enlarge, path))
        lost = relative(said(folder, dequantized(twin), scratch / "scratch"), whole)
        shutil.rmtree(twin)
        assert lost > bound, f"four times one scale of {path}: {lost:.5f} of {bound:.5f}"


def enlarge(path: str, tensors: dict[str, Tensor]) -> None:
    scale = tensors[f"{path}.weight_scale"].view(-1)
    scale[int(torch.argmax(scale))] *= 4
