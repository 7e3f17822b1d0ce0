"""What a GPU that is not there would run each scheme with, and why not with the others."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from mlload.checkpoint.finding import MlloadError
from mlload.kernels import gpu_conditions
from mlload.kernels.selection import first
from mlload.kernels.vllm_ops.functions import function
from mlload.kernels.vllm_ops.marlin import words
from mlload.quant.formats import bitstream
from mlload.quant.spec import Scheme
from tests.kernels import linears

H200, A100, L40, B200, T4 = (9, 0), (8, 0), (8, 9), (10, 0), (7, 5)
AWQ = linears.grouped("awq", symmetric=False)


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Installed here: triton and no vllm, whatever really is."""
    present = {"triton"}
    monkeypatch.setattr(gpu_conditions, "installed", lambda package: package in present)
    return present


@pytest.mark.parametrize(
    ("scheme", "capability", "dtype", "name"),
    [
        (AWQ, H200, "bfloat16", "weight_only"),
        (AWQ, A100, "float16", "weight_only"),
        (AWQ, T4, "float16", "dequantized"),
        (AWQ, H200, "float32", "dequantized"),
        (linears.grouped("gptq", act_order=True), H200, "bfloat16", "weight_only"),
        (linears.grouped("gptq", bits=3), H200, "bfloat16", "dequantized"),
        (linears.grouped("gptq", group=48), H200, "bfloat16", "dequantized"),
        (linears.FP8_BLOCK, H200, "bfloat16", "fp8"),
        (linears.FP8_BLOCK, A100, "bfloat16", "weight_only"),
        (linears.FP8_CHANNEL, H200, "bfloat16", "scaled_mm"),
        (linears.FP8_CHANNEL, H200, "float16", "fp8"),
        (linears.FP8_CHANNEL, L40, "bfloat16", "fp8"),
        (linears.FP8_CHANNEL, A100, "bfloat16", "weight_only"),
        (linears.INT8, A100, "bfloat16", "int8"),
        (linears.INT8_WEIGHTS, H200, "bfloat16", "weight_only"),
        (linears.MXFP4, B200, "bfloat16", "weight_only"),
        (linears.NVFP4, H200, "bfloat16", "weight_only"),
    ],
    ids=lambda v: v.layout or v.format if isinstance(v, Scheme) else str(v),
)
def test_the_first_that_can(scheme: Scheme, capability: tuple[int, int], dtype: str, name: str) -> None:
    candidate, declined = first(scheme, 4096, 1536, dtype, "cuda", capability)
    assert candidate.name == name
    assert all(reason for _, reason in declined)


def test_vllm_is_asked_first_where_it_is_installed(packages: set[str]) -> None:
    assert dict(first(AWQ, 4096, 4096, "bfloat16", "cuda", H200)[1])["marlin"] == "vllm is not installed"
    packages.add("vllm")
    assert first(AWQ, 4096, 4096, "bfloat16", "cuda", H200)[0].name == "machete"
    assert first(AWQ, 4096, 4096, "bfloat16", "cuda", A100)[0].name == "marlin"
    narrow, before = first(linears.grouped("gptq", group=32), 4096, 4096, "bfloat16", "cuda", H200)
    assert (narrow.name, dict(before)["machete"]) == ("marlin", "groups of 64, 128 or one a row, not 32")
    assert first(linears.FP8_CHANNEL, 4096, 4096, "bfloat16", "cuda", H200)[0].name == "cutlass_fp8"
    candidate, declined = first(AWQ, 4096 + 32, 4096, "bfloat16", "cuda", H200)
    assert candidate.name == "weight_only"
    assert dict(declined)["machete"] == "N per rank must be a multiple of 128: 4128 % 128 = 32"
    assert dict(declined)["marlin"] == "N per rank must be a multiple of 64: 4128 % 64 = 32"


def test_reasons_say_what_is_in_the_way(packages: set[str]) -> None:
    reasons = dict(first(linears.FP8_BLOCK, 4096, 4096, "bfloat16", "cuda", A100)[1])
    assert reasons["fp8"] == "fp8 instructions need compute capability 8.9, this GPU has 8.0"
    packages.clear()
    candidate, declined = first(AWQ, 4096, 4096, "bfloat16", "cuda", H200)
    assert (candidate.name, dict(declined)["weight_only"]) == ("dequantized", "triton is not installed")


def test_codes_reach_vllm_in_the_layout_of_gptq() -> None:
    codes = torch.randint(0, 16, (24, 64), dtype=torch.uint8)
    assert (words(codes, 4).numpy() == bitstream.pack_words(codes.numpy(), 4).T).all()
    wide = torch.randint(0, 256, (24, 64), dtype=torch.uint8)
    assert (words(wide, 8).numpy() == bitstream.pack_words(wide.numpy(), 8).T).all()


def test_a_release_that_changed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("changed")
    exec("def gemm(a, b): return a", module.__dict__)
    monkeypatch.setitem(sys.modules, "changed", module)
    assert function("changed", "gemm", "a", "b")(1, 2) == 1
    with pytest.raises(MlloadError, match=r"changed\.gemm of .* takes no scale"):
        function("changed", "gemm", "a", "scale")
    with pytest.raises(MlloadError, match=r"has no changed\.other"):
        function("changed", "other")


@pytest.mark.skipif(not os.environ.get("MLLOAD_VLLM_SOURCE"), reason="MLLOAD_VLLM_SOURCE names no vLLM source tree")
def test_the_functions_are_in_vllms_source_with_these_parameters() -> None:
    """Every `function(module, name, parameters...)` of the adapters, against the release's own text."""
    root = Path(os.environ["MLLOAD_VLLM_SOURCE"])
    adapters = Path(gpu_conditions.__file__).parent / "vllm_ops"
    utils = "vllm.model_executor.layers.quantization.utils.marlin_utils"
    seen = 0
    for path in adapters.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "function"):
                continue
            first_argument, *others = node.args
            constants = {"UTILS": utils, "OPERATORS": "vllm._custom_ops"}
            named = isinstance(first_argument, ast.Name)
            module = constants[first_argument.id] if named else ast.literal_eval(first_argument)
            name = ast.literal_eval(others[0])
            starred = [a for a in others if isinstance(a, ast.Starred)]
            parameters = [ast.literal_eval(argument) for argument in others[1:] if argument not in starred]
            source = ast.parse((root / module.replace(".", "/")).with_suffix(".py").read_text())
            found = next(f for f in source.body if isinstance(f, ast.FunctionDef) and f.name == name)
            assert {argument.arg for argument in found.args.args} >= set(parameters), name
            seen += 1
    assert seen == 17
