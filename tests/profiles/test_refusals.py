"""What the engine refuses in a config: each rule, and vLLM's own verdicts."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from mlload.checkpoint.finding import Finding
from mlload.profiles import load
from mlload.profiles.codes import CODES
from mlload.profiles.quantization import Quantization, resolve_quantization
from mlload.profiles.refusals import config_refusals, dtype_refusals, quant_refusals
from tests.truth_rows import TORCH, Row, capability, folder, own_rows, public_rows

VLLM = load("vllm", "0.33.0")
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}


def codes(findings: tuple[Finding, ...]) -> list[str]:
    assert all(finding.code in CODES for finding in findings)
    return [finding.code for finding in findings if finding.severity == "error"]


def of_quant(config: dict[str, Any], cc: tuple[int, int] = (9, 0), dtype: str = "BF16") -> list[str]:
    found = resolve_quantization({**LLAMA, "quantization_config": config}, {}, VLLM)
    return codes(found.findings + quant_refusals(found, dtype, cc, VLLM))


def test_a_plain_model_is_not_refused() -> None:
    assert config_refusals(LLAMA, VLLM) == ()


def test_remote_code_needs_trust_where_nobody_else_knows_the_type() -> None:
    config = {**LLAMA, "model_type": "made_up", "auto_map": {"AutoConfig": "configuration.MadeUp"}}
    assert codes(config_refusals(config, VLLM)) == ["EN001"]
    assert codes(config_refusals(config, VLLM, trust_remote_code=True)) == []
    assert codes(config_refusals({**config, "model_type": "deepseek_v3"}, VLLM)) == []
    assert codes(config_refusals({**config, "model_type": "chatglm"}, VLLM)) == []


def test_an_unknown_type_without_code_is_refused() -> None:
    assert codes(config_refusals({**LLAMA, "model_type": "made_up"}, VLLM)) == ["EN002"]


@pytest.mark.parametrize(
    ("architecture", "code"),
    [("QWenLMHeadModel", "EN003"), ("BartModel", "EN004"), ("MadeUpForCausalLM", "EN006"), ("LlamaForCausalLM", None)],
)
def test_architectures(architecture: str, code: str | None) -> None:
    assert codes(config_refusals({**LLAMA, "architectures": [architecture]}, VLLM)) == ([code] if code else [])


def test_names_of_any_length_make_a_short_sentence() -> None:
    (finding,) = config_refusals({**LLAMA, "architectures": ["A" * 5000, *map(str, range(20))]}, VLLM)
    assert len(finding.message) < 300 and "and 17 more" in finding.message
    assert len(finding.numbers["architectures"]) == 21
    (finding,) = config_refusals({**LLAMA, "model_type": "t" * 5000}, VLLM)
    assert finding.code == "EN002" and len(finding.message) < 200


def test_a_removed_architecture_names_its_last_version() -> None:
    (finding,) = config_refusals({**LLAMA, "architectures": ["Grok1ForCausalLM"]}, VLLM)
    assert "0.24.0" in finding.message


def test_a_class_that_only_transformers_has_is_a_warning() -> None:
    fallback = VLLM.value("transformers_classes")[0]
    (finding,) = config_refusals({**LLAMA, "architectures": [fallback]}, VLLM)
    assert (finding.code, finding.severity) == ("EN005", "warning")


@pytest.mark.parametrize(
    ("model_type", "asked", "cc", "code"),
    [
        ("gemma2", "float16", (9, 0), "EN014"),
        ("gemma2", "half", (9, 0), "EN014"),
        ("gemma2", "auto", (7, 5), None),
        ("llama", "bfloat16", (7, 5), "EN015"),
        ("llama", "bfloat16", (8, 0), None),
        ("llama", "float16", (7, 5), None),
        ("llama", "int8", (9, 0), "EN016"),
    ],
)
def test_dtypes(model_type: str, asked: str, cc: tuple[int, int], code: str | None) -> None:
    assert codes(dtype_refusals(model_type, asked, cc, VLLM)) == ([code] if code else [])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, None),
        ({"desc_act": True}, "EN022"),
        ({"desc_act": True, "group_size": -1}, None),
        ({"bits": 3}, "EN023"),
        ({"sym": False}, "EN023"),
        ({"bits": 8}, None),
        ({"dynamic": {"+:.*down_proj": {"desc_act": True}}}, "EN022"),
        ({"dynamic": {"-:.*down_proj": {"desc_act": True}}}, None),
    ],
)
def test_gptq(change: dict[str, Any], code: str | None) -> None:
    assert of_quant({**GPTQ, **change}) == ([code] if code else [])


def test_a_missing_field_is_named() -> None:
    config = {key: value for key, value in GPTQ.items() if key != "sym"}
    assert of_quant(config) == ["EN030"]


# What Quark itself exports beside its entries; a real vLLM ends in a TypeError or AttributeError without them.
QUARK: dict[str, Any] = {
    "quant_method": "quark",
    "export": {"kv_cache_group": []},
    "exclude": ["lm_head"],
    "layer_type_quant_config": {},
    "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}},
}


def quark_int8(weight: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
    rows = {"dtype": "int8", "qscheme": "per_channel", "symmetric": True, "is_dynamic": False}
    tokens = None if inputs is None else {**rows, "is_dynamic": True, **inputs}
    whole = {"weight": {**rows, **weight}, "input_tensors": tokens}
    return {**QUARK, "global_quant_config": whole}


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, None),
        ({"quant_method": "awq", "bits": 8, "group_size": 128, "zero_point": True}, "EN024"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}, None),
        ({"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": [128, 128]}, "EN026"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128]}, "EN026"),
        ({"quant_method": "fp8", "activation_scheme": "lazy"}, "EN026"),
        ({"quant_method": "quark"}, "EN027"),
        (QUARK, None),
        ({**QUARK, "export": {}}, "EN027"),
        ({**QUARK, "exclude": None}, "EN027"),
        ({**QUARK, "layer_type_quant_config": None}, "EN027"),
        ({**QUARK, "layer_quant_config": None}, None),
        ({**QUARK, "global_quant_config": None}, "EN027"),
        ({**QUARK, "global_quant_config": None, "layer_quant_config": {"*": {}}}, None),
        ({**QUARK, "export": {"kv_cache_group": ["*k_proj"]}, "layer_quant_config": {}}, "EN027"),
        (quark_int8({}, {}), None),
        (quark_int8({"qscheme": "per_tensor"}, {"qscheme": "per_tensor", "is_dynamic": False}), None),
        (quark_int8({"symmetric": False}, {}), "EN027"),
        (quark_int8({"qscheme": "per_group"}, {}), "EN027"),
        (quark_int8({}, {"qscheme": "per_tensor"}), "EN027"),
        (quark_int8({}, {"dtype": "fp8_e4m3"}), "EN027"),
        (quark_int8({}, None), "EN027"),
        ({"quant_method": "modelopt", "quant_algo": "W2A2"}, "EN013"),
        ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "INT4_AWQ"}}, "EN013"),
        ({"quant_method": "auto-round", "bits": 9, "group_size": 128}, "EN029"),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, None),
        ({"quant_method": "bitsandbytes"}, "EN010"),
        ({"quant_method": "gguf"}, "EN010"),
        ({"quant_method": "fbgemm_fp8"}, "EN011"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"actorder": "group"}}}}, "EN025"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"actorder": "weight"}}}}, None),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 4, "type": "int"}}, "EN032"),
    ],
)
def test_quantization_configs(config: dict[str, Any], code: str | None) -> None:
    assert of_quant(config) == ([code] if code else [])


def test_capability_and_dtype_of_a_method() -> None:
    mxfp4 = {"quant_method": "mxfp4"}
    assert of_quant(mxfp4, cc=(7, 5)) == ["EN020"]
    assert of_quant(mxfp4, dtype="F16") == ["EN021"]
    assert of_quant(GPTQ, dtype="F32") == ["EN021"]
    assert of_quant(GPTQ, cc=(6, 0)) == []


def test_a_flag_that_contradicts_the_files() -> None:
    config = {**LLAMA, "quantization_config": GPTQ}
    assert codes(resolve_quantization(config, {}, VLLM, asked="gptq_marlin").findings) == []
    assert codes(resolve_quantization(config, {}, VLLM, asked="awq").findings) == ["EN012"]
    allowed = {**LLAMA, "quantization_config": {"quant_method": "fbgemm_fp8"}}
    assert codes(resolve_quantization(allowed, {}, VLLM, allow_deprecated=True).findings) == []


def test_what_vllm_does_not_read() -> None:
    side = {"quantize_config.json": GPTQ}
    assert resolve_quantization(LLAMA, side, VLLM).method is None
    named = {"hf_quant_config.json": {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}}
    assert resolve_quantization(LLAMA, named, VLLM).method == "modelopt"
    assert resolve_quantization({**LLAMA, "quantization_config": {"bits": 4}}, named, VLLM).method is None


def errors(row: Row) -> tuple[list[Finding], Quantization]:
    files = {path.name: json.loads(path.read_text()) for path in folder(row).glob("*.json")}
    config = files["config.json"]
    found = resolve_quantization(config, files, VLLM)
    refused = (
        *config_refusals(config, VLLM, trust_remote_code=row["trust_remote_code"]),
        *found.findings,
        *quant_refusals(found, TORCH.get(row["dtype"], "BF16"), capability(row), VLLM),
    )
    return [finding for finding in refused if finding.severity == "error"], found


def judge(rows: tuple[Row, ...]) -> None:
    """Every row refused at these stages is refused here with its numbers; no row that is built is."""
    for row in rows:
        found, quantization = errors(row)
        if row["verdict"] == "ok":
            assert not found, (row["config"], found)
            assert quantization.method == row["quant"], row["config"]
        elif row["stage"] in ("config", "quant-config"):
            numbers = set(re.findall(r"\d+", row["message"] or ""))
            spoken = [set(re.findall(r"\d+", finding.message)) for finding in found]
            assert any(numbers <= said for said in spoken), (row["config"], row["message"], found)


def test_vllms_verdicts() -> None:
    judge(own_rows())


@pytest.mark.truth
def test_vllms_verdicts_for_published_configs() -> None:
    judge(public_rows())


@pytest.mark.parametrize(
    ("asked", "files", "method", "code"),
    [
        ("gptq", {"quantize_config.json": GPTQ}, "auto_gptq", None),
        ("gptq", {"quantize_config.json": {**GPTQ, "desc_act": True}}, "auto_gptq", "EN022"),
        ("awq", {}, "awq", "EN033"),
        ("fp8", {}, "online", None),
        ("fp8_per_tensor", {}, "online", None),
        ("bitsandbytes", {}, "bitsandbytes", "EN010"),
    ],
)
def test_a_flag_on_files_that_declare_nothing(asked: str, files: dict[str, Any], method: str, code: str | None) -> None:
    found = resolve_quantization(LLAMA, files, VLLM, asked=asked)
    assert found.method == method
    assert codes(found.findings + quant_refusals(found, "BF16", (9, 0), VLLM)) == ([code] if code else [])
