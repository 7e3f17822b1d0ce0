"""What vLLM's operators are handed, against vLLM's own packing in plain torch, cut out of its source and run alone.

MLLOAD_VLLM_SOURCE names a folder that holds its `vllm` package; nothing of it is imported.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from mlload.kernels import gpu_conditions
from mlload.kernels.experts import ExpertShape, select_grouped
from mlload.kernels.vllm_ops import experts as adapter
from mlload.kernels.vllm_ops import machete
from mlload.quant.spec import Scheme
from tests.kernels import linears

UTILS = "model_executor/layers/quantization/utils"
source = pytest.mark.skipif(
    not os.environ.get("MLLOAD_VLLM_SOURCE"), reason="MLLOAD_VLLM_SOURCE names no vLLM source tree"
)
H200 = (9, 0)
SYMMETRIC = linears.grouped("gptq", group=64)
AWQ = linears.grouped("awq", group=64, symmetric=False)
PACKED_ZEROS = linears.grouped("compressed_tensors", group=64, symmetric=False)
BYTES = linears.grouped("compressed_tensors", bits=8, group=128)


def cut_out() -> dict[str, Any]:
    """The functions by name. ScalarType is only ever asked for its bits."""
    root = Path(os.environ["MLLOAD_VLLM_SOURCE"]) / "vllm" / UTILS
    wanted = {
        "quant_utils.py": {"get_pack_factor", "pack_rows", "pack_cols", "unpack_cols",
                           "pack_quantized_values_into_int32", "unpack_quantized_values_into_int32"},
        "marlin_utils.py": {"get_scale_perms", "marlin_permute_scales", "marlin_zero_points", "marlin_permute_bias",
                            "marlin_moe_permute_scales", "moe_packed_to_marlin_zero_points"},
    }  # fmt: skip
    found: dict[str, Any] = {"torch": torch, "numpy": numpy, "ScalarType": object}
    for file, names in wanted.items():
        tree = ast.parse((root / file).read_text())
        kept: list[ast.stmt] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
        assert len(kept) == len(names), file
        exec(compile(ast.Module(kept, []), file, "exec"), found)
    return found


@source
@pytest.mark.parametrize("scheme", [SYMMETRIC, AWQ, PACKED_ZEROS, BYTES], ids=lambda scheme: scheme.format)
def test_machete_is_given_what_vllm_gives_it(scheme: Scheme) -> None:
    theirs, n, k = cut_out(), 128, 256
    linear = linears.integer(scheme, n, k)
    given = machete.Machete(scheme, n, k, torch.float16).inputs(linear.tensors)
    bits = SimpleNamespace(size_bits=scheme.bits)
    codes = theirs["unpack_quantized_values_into_int32"](given["weight"], bits, 0)
    assert torch.equal(theirs["pack_quantized_values_into_int32"](codes, bits, 0), given["weight"])
    assert torch.equal(theirs["pack_rows"](codes, scheme.bits, k, n), given["weight"])
    assert given["weight"].stride() == (1, k * scheme.bits // 32)
    # As Machete adds it up: code * scale + zero, in numbers of 16 bits.
    spread = [given[name].double().repeat_interleave(scheme.group_size or k, 0) for name in ("scale",)]
    zero = given["zero"] if "zero" in given else -given["scale"] * (1 << (scheme.bits - 1))
    wide = codes.double() * spread[0] + zero.double().repeat_interleave(scheme.group_size or k, 0)
    room = 2.0**-11 * 1.001 * (15 if scheme.bits == 4 else 255) * spread[0].max()
    assert float((wide.T - linear.weight).abs().max()) <= float(room)


@source
@pytest.mark.parametrize("scheme", [SYMMETRIC, PACKED_ZEROS, BYTES], ids=lambda scheme: scheme.format)
def test_marlin_experts_are_given_what_vllm_gives_them(scheme: Scheme, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = {**cut_out(), "gptq_marlin_repack": lambda b_q_weight, size_k, size_n, num_bits: b_q_weight}
    monkeypatch.setattr(adapter, "function", lambda module, name, *parameters: theirs[name])
    hidden, inner = 256, 128
    sets = {
        part: [linears.integer(scheme, n, k, seed=e).tensors | {"bias": torch.randn(n)} for e in range(3)]
        for part, n, k in (("w1", 2 * inner, hidden), ("w2", hidden, inner))
    }
    kernel = adapter.MarlinExperts(scheme, ExpertShape(3, hidden, inner), torch.float16)
    packed = kernel.prepare(sets["w1"], sets["w2"])
    for part, n, k in (("w1", 2 * inner, hidden), ("w2", hidden, inner)):
        scales = torch.stack([stored_scale(scheme, tensors, n) for tensors in sets[part]])
        group = scheme.group_size or -1
        assert torch.equal(packed[f"{part}.scale"], theirs["marlin_moe_permute_scales"](scales, k, n, group))
        bias = torch.stack([tensors["bias"] for tensors in sets[part]]).half()
        assert torch.equal(packed[f"{part}.bias"], theirs["marlin_permute_bias"](bias))
        assert packed[f"{part}.weight"].shape == (3, k * scheme.bits // 32, n)
        if scheme is PACKED_ZEROS:
            # Stored [N / 8, groups]; vLLM packs along N, as [groups, N / 8].
            zeros = torch.stack([repacked_zeros(theirs, tensors, n) for tensors in sets[part]])
            wanted = theirs["moe_packed_to_marlin_zero_points"](zeros, zeros.shape[1], n, 4)
            assert torch.equal(packed[f"{part}.zero"], wanted)


def stored_scale(scheme: Scheme, tensors: dict[str, Tensor], n: int) -> Tensor:
    return tensors["weight_scale"].T.contiguous() if "weight_scale" in tensors else tensors["scales"]


def repacked_zeros(theirs: dict[str, Callable[..., Tensor]], tensors: dict[str, Tensor], n: int) -> Tensor:
    rows = theirs["unpack_quantized_values_into_int32"](tensors["weight_zero_point"], SimpleNamespace(size_bits=4), 0)
    return theirs["pack_cols"](rows.T.contiguous(), 4, rows.shape[1], n)


@pytest.mark.parametrize(
    ("scheme", "name", "before"),
    [
        (SYMMETRIC, "fused_marlin_moe", {}),
        (None, "fused_experts", {"fused_marlin_moe": "takes 4 and 8-bit integers without activation quantization; "
                                                      "these are floats"}),
        (linears.FP8_BLOCK, "fused_experts", {}),
        (linears.FP8_STATIC, "fused_moe", {}),
        (linears.MXFP4, "fused_moe", {}),
    ],
)  # fmt: skip
def test_vllm_is_asked_first_for_experts(
    scheme: Scheme | None, name: str, before: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = {"triton", "vllm"}
    monkeypatch.setattr(gpu_conditions, "installed", lambda package: package in installed)
    chosen, declined = select_grouped(scheme, ExpertShape(8, 2048, 768), "bfloat16", "cuda", H200)
    assert chosen is not None and chosen.kernel.name == name and not declined
    assert before.items() <= dict(chosen.declined).items()
    installed.remove("vllm")
    ours, _ = select_grouped(scheme, ExpertShape(8, 2048, 768), "bfloat16", "cuda", H200)
    assert ours is not None and dict(ours.declined).keys() == {"fused_marlin_moe", "fused_experts"}


def test_a_choice_of_other_ranks_goes_nowhere() -> None:
    ids = torch.tensor([[0, -1], [2, 1]])
    dealt = adapter.TritonExperts(None, ExpertShape(3, 64, 64, dealt_out=True), torch.float16).routing(ids)
    assert dealt["topk_ids"].tolist() == [[0, 3], [2, 1]] and dealt["global_num_experts"] == 4
    assert dealt["expert_map"].tolist() == [0, 1, 2, -1]
    alone = adapter.TritonExperts(None, ExpertShape(3, 64, 64), torch.float16).routing(ids)
    assert alone["expert_map"] is None and alone["global_num_experts"] == 3


def test_fp8_experts_in_the_shapes_that_vllm_reads() -> None:
    hidden, inner = 256, 128
    for scheme, scale in ((linears.FP8_BLOCK, (2, 2, 2)), (linears.FP8_CHANNEL, (2, 256, 1))):
        sets = [
            [linears.fp8(scheme, n, k, seed=e).tensors for e in range(2)]
            for n, k in ((2 * inner, hidden), (hidden, inner))
        ]
        packed = adapter.TritonExperts(scheme, ExpertShape(2, hidden, inner), torch.bfloat16).prepare(*sets)
        assert packed["w1.weight"].shape == (2, 256, 256) and packed["w1.weight"].dtype == torch.float8_e4m3fn
        assert packed["w1.scale"].shape == scale and packed["w1.scale"].dtype == torch.float32
