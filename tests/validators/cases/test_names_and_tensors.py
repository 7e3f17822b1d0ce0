"""Reported faults of names, scales and formats that no other test holds, as folders judged by the command line."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from mlload.cli.app import main
from mlload.cli.output import Output
from tests.validators.build import (
    AWQ,
    GPTQ,
    LLAMA,
    NVFP4,
    QWEN3_MOE,
    W4A16,
    Tensors,
    awq,
    gptq,
    llama,
    nvfp4,
    quantized,
    w4a16,
)
from tests.validators.cases.folders import errors, found, validate, write

WEIGHTS: dict[str, Any] = W4A16["config_groups"]["group_0"]["weights"]


def w4a16_with(ignore: list[str], **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {**WEIGHTS, **weights}}
    return {**W4A16, "config_groups": {"group_0": group}, "ignore": ignore}


# A language model beside a CLIP tower that was left alone.
SEEING: dict[str, Any] = {
    "architectures": ["LlavaForConditionalGeneration"],
    "model_type": "llava",
    "text_config": {**LLAMA, "num_hidden_layers": 1},
    "vision_config": {
        "model_type": "clip_vision_model",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "image_size": 28,
        "patch_size": 14,
    },
    "image_token_index": 511,
    "torch_dtype": "bfloat16",
}
TOWER: Tensors = {
    "vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight": ("BF16", (256, 128)),
    "vision_tower.vision_model.encoder.layers.0.mlp.fc2.weight": ("BF16", (128, 256)),
    **{
        f"vision_tower.vision_model.encoder.layers.0.self_attn.{name}.weight": ("BF16", (128, 128))
        for name in ("q_proj", "k_proj", "v_proj", "out_proj")
    },
    "multi_modal_projector.linear_1.weight": ("BF16", (256, 128)),
    "multi_modal_projector.linear_2.weight": ("BF16", (256, 256)),
}


def seeing() -> Tensors:
    text = quantized(llama({**LLAMA, "num_hidden_layers": 1}), w4a16)
    return {**{f"language_model.{name}": entry for name, entry in text.items()}, **TOWER}


def shown(folder: Path) -> dict[str, Any]:
    said = StringIO()
    main(["inspect", str(folder), "--format", "json"], Output(said, StringIO()))
    result: dict[str, Any] = json.loads(said.getvalue())
    return result


def test_case_41_widths_that_only_the_groups_declare(tmp_path: Path) -> None:
    """Eight 4-bit numbers in an int32: the parameters are those of the plain model."""
    plain = shown(write(tmp_path / "plain", LLAMA, llama()))
    packed = shown(write(tmp_path / "packed", LLAMA, quantized(llama(), w4a16), W4A16))
    assert packed["architecture"]["parameters"]["total"] == plain["architecture"]["parameters"]["total"]


@pytest.mark.parametrize(
    "ignore",
    [
        ["re:.*lm_head", "re:vision_tower.*", "re:multi_modal_projector.*"],
        ["language_model.lm_head", *sorted(name.removesuffix(".weight") for name in TOWER)],
    ],
    ids=["patterns", "names without a dot at their end"],
)
def test_case_47_and_49_plain_layers_that_the_ignore_list_names(tmp_path: Path, ignore: list[str]) -> None:
    """Entries are compared with the tensors that are there, whatever the engine calls the layers."""
    result = validate(write(tmp_path, SEEING, seeing(), w4a16_with(ignore)), "--tp", "1")
    assert [finding for finding in errors(result) if finding["code"].startswith(("NM", "QT"))] == []


def test_case_47_and_49_a_plain_layer_that_nothing_names(tmp_path: Path) -> None:
    ignore = ["language_model.lm_head", "re:vision_tower.*self_attn.*", "re:multi_modal_projector.*"]
    result = validate(write(tmp_path, SEEING, seeing(), w4a16_with(ignore)), "--tp", "1")
    said = [finding for finding in result["findings"] if "fc1" in finding["where"] + finding["message"]]
    assert said and result["verdict"] == "fail"


@pytest.mark.parametrize("version", ["0.32", "0.33"])
def test_case_58_asymmetric_groups_have_a_scheme(tmp_path: Path, version: str) -> None:
    """Zero points are packed along N: [N / 8, K / 128]."""

    def asymmetric(n: int, k: int) -> Tensors:
        return {**w4a16(n, k), "weight_zero_point": ("I32", (n // 8, k // 128))}

    folder = write(tmp_path, LLAMA, quantized(llama(), asymmetric), w4a16_with(["lm_head"], symmetric=False))
    assert validate(folder, "--tp", "1", engine=f"vllm@{version}")["verdict"] == "ok"


@pytest.mark.parametrize(("bits", "sym", "starts"), [(2, True, False), (4, False, False), (4, True, True)])
def test_case_62_what_the_second_layout_is_read_for(tmp_path: Path, bits: int, sym: bool, starts: bool) -> None:
    """2 and 3 bits and asymmetric GPTQ are refused in this version, whatever the layout is called."""
    quant = {**GPTQ, "bits": bits, "sym": sym, "checkpoint_format": "gptq_v2"}
    result = validate(write(tmp_path, LLAMA, None, quant), "--tp", "1")
    assert result["starts"] is starts
    assert bool(found(result, "EN023")) is not starts


def test_case_65_an_expert_without_its_input_scale(tmp_path: Path) -> None:
    tensors = quantized(llama(QWEN3_MOE), nvfp4)
    del tensors["model.layers.0.mlp.experts.3.up_proj.input_scale"]
    result = validate(write(tmp_path, QWEN3_MOE, tensors, NVFP4), "--tp", "1")
    (finding,) = errors(result)
    assert (result["starts"], result["verdict"]) == (True, "fail")
    assert finding["where"] == "model.layers.0.mlp.experts.3.up_proj"
    assert "input_scale" in finding["message"] and "expert 3 of 8" in finding["message"]


def test_case_80_widths_that_change_by_layer(tmp_path: Path) -> None:
    """8 bits in layer 1, 4 elsewhere: declared for that layer they are served, under one width they are not."""

    def eight(n: int, k: int) -> Tensors:
        return gptq(n, k, 8)

    here = {name: entry for name, entry in llama().items() if ".layers.1." in name}
    rest = {name: entry for name, entry in llama().items() if ".layers.1." not in name}
    tensors = {**quantized(rest, gptq), **quantized(here, eight)}
    declared = {**GPTQ, "dynamic": {r"+:model\.layers\.1\..*": {"bits": 8}}}
    assert validate(write(tmp_path / "declared", LLAMA, tensors, declared), "--tp", "1")["verdict"] in ("ok", "warn")
    result = validate(write(tmp_path / "one", LLAMA, tensors, GPTQ), "--tp", "1")
    assert result["verdict"] == "fail"
    said = " / ".join(f"{finding['where']} {finding['message']}" for finding in errors(result))
    assert "layers.1." in said and "4" in said and "8" in said


def test_case_110_the_format_is_that_of_the_files(tmp_path: Path) -> None:
    """A folder that is called AWQ and holds compressed-tensors."""
    tensors = quantized(llama(), w4a16)
    called = write(tmp_path / "model-AWQ", LLAMA, tensors, W4A16)
    plain = write(tmp_path / "model", LLAMA, tensors, W4A16)
    first, second = validate(called, "--tp", "1"), validate(plain, "--tp", "1")
    assert first["verdict"] == "ok"
    assert first["kernels"] == second["kernels"]
    assert {each["method"] for each in first["kernels"] if "Linear[" in each["layers"]} != {"AutoAWQLinearMethod"}
    flagged = validate(called, "--tp", "1", "--quantization", "awq")
    assert flagged["starts"] is False


@pytest.mark.parametrize(
    ("stored", "label", "name"), [(awq, GPTQ, "awq"), (gptq, AWQ, "gptq")], ids=["awq as gptq", "gptq as awq"]
)
def test_case_134_the_axis_tells_the_format(tmp_path: Path, stored: Any, label: dict[str, Any], name: str) -> None:
    """[in, out / 8] is AWQ's, [in / 8, out] is GPTQ's."""
    result = validate(write(tmp_path, LLAMA, quantized(llama(), stored), label), "--tp", "1")
    assert result["verdict"] == "fail" and result["starts"] is False
    (finding,) = found(result, "QT004")
    assert finding["numbers"]["found"] == name


def test_case_136_a_draft_layer_is_no_layer_too_many(tmp_path: Path) -> None:
    """num_hidden_layers counts layers 0 and 1; number 2 is the draft's, which the engine does not build unasked."""
    config = {
        **QWEN3_MOE,
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 0,
        "num_nextn_predict_layers": 1,
        "n_group": 1,
        "topk_group": 1,
    }
    result = validate(write(tmp_path, config), "--tp", "1")
    more = validate(write(tmp_path / "none", {**config, "num_nextn_predict_layers": 0}), "--tp", "1")
    assert result["starts"] is True
    assert [rank["weight_bytes"] for rank in result["ranks"]] == [rank["weight_bytes"] for rank in more["ranks"]]


def fused() -> tuple[dict[str, Any], Tensors]:
    """6 heads and 2 KV heads of 64 in one [q; k; v], gate and up in one [gate; up]."""
    sizes = {"hidden_size": 384, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 512}
    config = {**LLAMA, **sizes, "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "pad_token_id": 0}
    apart = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
    tensors = {name: entry for name, entry in llama(config).items() if name.split(".")[-2] not in apart}
    for layer in range(config["num_hidden_layers"]):
        tensors[f"model.layers.{layer}.self_attn.qkv_proj.weight"] = ("BF16", ((6 + 2 + 2) * 64, 384))
        tensors[f"model.layers.{layer}.mlp.gate_up_proj.weight"] = ("BF16", (2 * 512, 384))
    return config, tensors


def test_case_137_fused_parts_are_divided_one_by_one(tmp_path: Path) -> None:
    """640 rows divide by 4, and neither 6 heads nor 2 KV heads leave whole ones; by 2 all parts do."""
    folder = write(tmp_path, *fused())
    assert validate(folder, "--tp", "2")["verdict"] == "ok"
    result = validate(folder, "--tp", "4")
    assert result["starts"] is False
    assert any("6 % 4 = 2" in finding["message"] for finding in errors(result))
