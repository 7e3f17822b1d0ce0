"""DT and EN: dtypes against GPUs, quantization methods and KV caches."""

from __future__ import annotations

from typing import Any

import pytest

from mlload import profiles
from mlload.plan.mesh import Mesh
from mlload.plan.model import read_model
from mlload.plan.plan import make_plan
from mlload.validators.context import Request
from mlload.validators.verdict import Verdict, judge
from tests.quant.checkpoints import checkpoint
from tests.validators.build import FP8_STATIC, GPTQ, LLAMA, W4A16, fp8_static, gptq, llama, of, quantized, w4a16

Config = dict[str, Any]
GEMMA2 = {**LLAMA, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "query_pre_attn_scalar": 64}
PLAMO2 = {**LLAMA, "model_type": "plamo2", "architectures": ["Plamo2ForCausalLM"]}
W8A8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
            "input_activations": {
                "num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True,
            },
        }
    },
    "ignore": ["lm_head"],
}  # fmt: skip


def on(
    capability: tuple[int, int],
    config: Config = LLAMA,
    tensors: Any = None,
    declared: Config | None = None,
    *,
    version: str = "0.33",
    **asked: Any,
) -> Verdict:
    """A verdict on a GPU, planned with what was asked."""
    whole = {**config, "quantization_config": declared} if declared else config
    model = read_model(checkpoint(whole, tensors))
    plan = make_plan(
        model,
        profiles.load("vllm", version),
        Mesh(),
        dtype=asked.get("dtype", "auto"),
        capability=capability,
        kv_dtype=asked.get("kv_cache_dtype", "auto"),
    )
    return judge(plan, Request(capability=".".join(map(str, capability)), **asked))


def test_bfloat16_asked_for_on_an_old_gpu_is_refused() -> None:
    found = on((7, 5), dtype="bfloat16")
    assert found.starts is False and of(found, "EN015")
    assert on((8, 0), dtype="bfloat16").starts is True


def test_dt001_auto_falls_back_to_float16() -> None:
    found = on((7, 5))
    (finding,) = of(found, "DT001")
    assert (finding.severity, finding.numbers["dtype"], found.starts) == ("info", "float16", True)
    assert not of(on((8, 0)), "DT001")
    assert not of(on((7, 5), dtype="half"), "DT001")


def test_case_103_float16_is_refused_for_types_that_overflow() -> None:
    found = on((8, 0), GEMMA2, dtype="half")
    assert found.starts is False and of(found, "EN014")


@pytest.mark.parametrize("declared", ["bfloat16", "float32"])
def test_case_103_no_safe_dtype_but_float32_on_an_old_gpu(declared: str) -> None:
    found = on((7, 0), {**GEMMA2, "torch_dtype": declared})
    (finding,) = of(found, "DT001")
    assert (finding.severity, finding.numbers["dtype"]) == ("warning", "float32")


def test_case_103_and_then_a_method_that_has_no_float32_is_refused() -> None:
    found = on((7, 5), GEMMA2, None, GPTQ)
    assert found.starts is False and of(found, "EN021")


def test_dt002_overflow_that_the_engine_does_not_know() -> None:
    """It starts, with a warning; in bfloat16 there is none."""
    (finding,) = of(on((8, 0), PLAMO2, llama(), dtype="float16"), "DT002")
    assert (finding.severity, finding.question) == ("warning", "right")
    assert finding.hints[0].command == "--dtype bfloat16"
    assert of(on((7, 5), PLAMO2, llama()), "DT002")[0].hints[0].command == "--dtype float32"
    assert not of(on((8, 0), PLAMO2, llama()), "DT002")


@pytest.mark.parametrize(("capability", "said"), [((8, 0), True), ((8, 6), True), ((8, 9), False), ((9, 0), False)])
def test_case_106_dt003_fp8_runs_weight_only_below_89(capability: tuple[int, int], said: bool) -> None:
    found = on(capability, LLAMA, quantized(llama(), fp8_static), FP8_STATIC)
    assert found.starts is True
    assert [finding.severity for finding in of(found, "DT003")] == (["info"] if said else [])


def test_weight_only_formats_are_no_fp8() -> None:
    assert not of(on((8, 0), LLAMA, quantized(llama(), w4a16), W4A16), "DT003")


@pytest.mark.parametrize("capability", [(10, 0), (12, 0)])
def test_case_107_int8_has_no_kernel_on_blackwell(capability: tuple[int, int]) -> None:
    """vLLM 0.33 still picks CUTLASS there, whose int8 kernels end at 9.x."""
    found = on(capability, LLAMA, None, W8A8)
    assert found.verdict == "fail" and of(found, "KN005")
    assert on((9, 0), LLAMA, None, W8A8).verdict == "ok"


def test_case_109_a_gpu_too_old_for_the_method_is_said_so() -> None:
    found = on((7, 0), LLAMA, quantized(llama(), fp8_static), FP8_STATIC)
    (finding,) = of(found, "EN020")
    assert finding.numbers == {"min_capability": 75, "capability": 70}
    assert not of(on((7, 0), LLAMA, quantized(llama(), gptq), GPTQ), "EN020")


def test_quantization_that_contradicts_the_files() -> None:
    found = on((9, 0), LLAMA, quantized(llama(), gptq), GPTQ, quantization="awq")
    assert found.starts is False and of(found, "EN012")


def test_dt010_unknown_cache_dtype() -> None:
    found = on((9, 0), kv_cache_dtype="fp7")
    assert found.starts is False and "'fp7'" in of(found, "DT010")[0].message


def test_dt010_a_cache_of_another_16_bits() -> None:
    assert on((9, 0), kv_cache_dtype="float16").starts is False
    assert on((9, 0), kv_cache_dtype="float16", version="0.32").starts is True
    assert on((9, 0), kv_cache_dtype="bfloat16").starts is True
    assert on((9, 0), kv_cache_dtype="float16", dtype="half").starts is True


def test_dt011_e5m2_beside_stored_scales() -> None:
    tensors = quantized(llama(), fp8_static)
    found = on((9, 0), LLAMA, tensors, FP8_STATIC, kv_cache_dtype="fp8_e5m2")
    assert found.starts is False and of(found, "DT011")
    assert not of(on((9, 0), LLAMA, tensors, FP8_STATIC, kv_cache_dtype="fp8"), "DT011")
    assert not of(on((9, 0), LLAMA, quantized(llama(), w4a16), W4A16, kv_cache_dtype="fp8_e5m2"), "DT011")
    assert not of(on((9, 0), kv_cache_dtype="fp8_e5m2"), "DT011")


def test_dt012_an_eight_bit_cache_on_older_gpus() -> None:
    """It depends on what is installed, so it is a warning and no refusal."""
    found = on((8, 0), kv_cache_dtype="fp8")
    (finding,) = of(found, "DT012")
    assert (finding.severity, found.starts) == ("warning", True)
    assert finding.hints[0].command == "--kv-cache-dtype bfloat16"
    assert not of(on((8, 9), kv_cache_dtype="fp8"), "DT012")
    assert not of(on((8, 0)), "DT012")
