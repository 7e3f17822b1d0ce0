"""Missing, left-over and misshapen tensors: what stops the start, and what vLLM serves without a word.

The answers to `starts` for unquantized models were also given by the real engine on a small model: a missing linear
or table is served, a missing norm, an unknown name and a surplus layer stop it, an unknown bias and channels beyond
the config's are passed over.
"""

from __future__ import annotations

from typing import Any

import pytest

from mlload.plan.model import read_model
from tests.quant.checkpoints import checkpoint
from tests.validators.build import (
    AWQ,
    FP8_BLOCK,
    FP8_STATIC,
    GPTQ,
    LLAMA,
    NVFP4,
    QWEN3_MOE,
    W4A16,
    Tensors,
    awq,
    fp8_block,
    fp8_static,
    gptq,
    llama,
    nvfp4,
    of,
    problems,
    quantized,
    verdict,
    w4a16,
    without,
)

FORMATS: dict[str, tuple[Any, dict[str, Any]]] = {
    "awq": (awq, AWQ),
    "gptq": (gptq, GPTQ),
    "w4a16": (w4a16, W4A16),
    "fp8 block": (fp8_block, FP8_BLOCK),
    "fp8 static": (fp8_static, FP8_STATIC),
    "nvfp4": (nvfp4, NVFP4),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("config", [LLAMA, QWEN3_MOE], ids=["dense", "experts"])
def test_whole_checkpoints_are_clean(name: str, config: dict[str, Any]) -> None:
    how, block = FORMATS[name]
    assert verdict(config, quantized(llama(config), how), block).findings == ()
    assert verdict(config, llama(config)).findings == ()


# Missing


@pytest.mark.parametrize(
    ("name", "starts"),
    [
        ("model.layers.2.mlp.up_proj.weight", True),
        ("model.embed_tokens.weight", True),
        ("model.layers.2.input_layernorm.weight", False),
        ("model.norm.weight", False),
    ],
)
def test_what_vllm_checks_of_an_unquantized_model(name: str, starts: bool) -> None:
    found = verdict(LLAMA, without(llama(), name))
    (finding,) = of(found, "TN001")
    assert finding.where == name and finding.numbers == {"count": 1}
    assert found.starts is starts and found.verdict == "fail"


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_is_checked_of_a_quantized_model(name: str) -> None:
    how, block = FORMATS[name]
    found = verdict(LLAMA, without(quantized(llama(), how), "layers.2.input_layernorm.weight"), block)
    assert [finding.code for finding in found.findings] == ["TN001"]
    assert found.starts is True and found.verdict == "fail"


@pytest.mark.parametrize("name", FORMATS)
def test_each_tensor_of_a_quantized_linear_counts(name: str) -> None:
    """Scales without a weight, a weight without scales: whatever is missing is told with what is there."""
    how, block = FORMATS[name]
    whole = quantized(llama(), how)
    at = "model.layers.2.mlp.up_proj."
    suffixes = [tensor.removeprefix(at) for tensor in whole if tensor.startswith(at)]
    for suffix in suffixes:
        found = verdict(LLAMA, without(whole, at + suffix), block)
        optional = (name, suffix) in (
            ("gptq", "g_idx"),
            ("gptq", "qzeros"),
            ("awq", "qzeros"),
            ("w4a16", "weight_shape"),
        )
        if optional:
            continue
        assert found.verdict == "fail", suffix
        (finding,) = [one for one in found.findings if one.where.startswith(at[:-1])]
        assert finding.code in ("QT009", "TN001"), suffix
        assert suffix not in finding.numbers.get("stored", []), suffix


def test_modelopt_marks_scales_that_were_never_loaded() -> None:
    """The one format with a check of its own: dense layers, not experts."""
    dense = verdict(LLAMA, without(quantized(llama(), nvfp4), "layers.2.mlp.up_proj.weight_scale"), NVFP4)
    assert of(dense, "QT009")[0].question == "starts" and dense.starts is False
    whole = quantized(llama(QWEN3_MOE), nvfp4)
    experts = verdict(QWEN3_MOE, without(whole, "layers.1.mlp.experts.2.up_proj.weight_scale"), NVFP4)
    assert of(experts, "QT009")[0].question == "right" and experts.starts is True


def test_a_missing_bias_is_no_half_of_a_quantized_linear() -> None:
    config = {**LLAMA, "attention_bias": True}
    biases: Tensors = {
        f"model.layers.{layer}.self_attn.{name}_proj.bias": ("BF16", (128 if name in "kv" else 256,))
        for layer in range(4)
        for name in "qkvo"
    }
    assert verdict(config, llama() | biases).findings == ()
    found = verdict(config, llama() | without(biases, "layers.3.self_attn.k_proj.bias"))
    (finding,) = found.findings
    assert finding.code == "TN001" and finding.where == "model.layers.3.self_attn.k_proj.bias"


def test_layers_that_are_not_there() -> None:
    gone = {name: entry for name, entry in llama().items() if not name.startswith("model.layers.3.")}
    found = verdict(LLAMA, gone)
    (finding,) = found.findings
    assert finding.code == "TN004" and finding.where == "model.layers.3"
    assert finding.numbers == {"layers": [3], "count": 9, "found": 3}
    assert '"num_hidden_layers": 3' in finding.hints[1].what
    assert found.starts is False
    packed = {
        n: e for n, e in quantized(llama(), awq).items() if not n.startswith(("model.layers.1.", "model.layers.2."))
    }
    found = verdict(LLAMA, packed, AWQ)
    (finding,) = found.findings
    assert finding.where == "model.layers.1-2" and found.starts is True and found.verdict == "fail"


def test_many_modules_of_one_layer_are_one_finding() -> None:
    lost = without(llama(), *(f"layers.1.self_attn.{p}_proj.weight" for p in "qkvo"))
    (finding,) = verdict(LLAMA, lost).findings
    assert finding.code == "TN001" and finding.numbers["count"] == 4
    assert finding.numbers["modules"] == [f"model.layers.1.self_attn.{p}_proj" for p in "qkvo"]


@pytest.mark.parametrize("how", ["one", "a third"])
def test_cases_65_and_70_experts_without_input_scale(how: str) -> None:
    """Completeness is per expert: the others of the layer have theirs."""
    bad = [3] if how == "one" else [0, 3, 6]
    whole = quantized(llama(QWEN3_MOE), nvfp4)
    lost = without(whole, *(f"layers.1.mlp.experts.{expert}.up_proj.input_scale" for expert in bad))
    found = verdict(QWEN3_MOE, lost, NVFP4)
    (finding,) = found.findings
    assert finding.code == "QT009" and finding.severity == "error"
    assert finding.numbers["experts"] == bad and finding.numbers["missing"] == ["input_scale"]
    assert finding.where.startswith("model.layers.1.mlp.experts.")
    assert found.starts is True and found.verdict == "fail"


@pytest.mark.parametrize(("config", "starts"), [(LLAMA, False), (QWEN3_MOE, True)], ids=["strict", "lenient"])
def test_case_70_an_input_scale_of_a_plain_layer(config: dict[str, Any], starts: bool) -> None:
    """The values do no harm; most of vLLM's classes refuse the name, some leave scales out that they do not know."""
    plain = "model.layers.0.self_attn.o_proj"
    whole = quantized(llama(config), nvfp4, keep=lambda module: module == plain)
    found = verdict(
        config, whole | {f"{plain}.input_scale": ("F32", ())}, {**NVFP4, "ignore": [*NVFP4["ignore"], plain]}
    )
    (finding,) = found.findings
    assert finding.code == "TN002" and found.starts is starts
    assert finding.severity == ("info" if starts else "error")


def test_an_expert_that_is_missing_whole() -> None:
    gone = {n: e for n, e in llama(QWEN3_MOE).items() if ".layers.0.mlp.experts.5." not in n}
    found = verdict(QWEN3_MOE, gone)
    assert {finding.where for finding in found.findings} == {
        f"model.layers.0.mlp.experts.5.{name}_proj.weight" for name in ("gate", "up", "down")
    }
    assert found.starts is True and found.verdict == "fail"


# Names


def test_case_71_a_renamed_scale() -> None:
    """Kept fp8 layers whose weight_scale_inv an exporter called weight_scale."""
    renamed: Tensors = {
        name.replace("_scale_inv", "_scale") if ".q_proj." in name else name: entry
        for name, entry in quantized(llama(), fp8_block).items()
    }
    found = verdict(LLAMA, renamed, FP8_BLOCK)
    assert found.verdict == "fail"
    assert any("rename weight_scale to weight_scale_inv" in hint.what for f in found.findings for hint in f.hints)


@pytest.mark.parametrize(("ours", "theirs"), [("", "language_model."), ("model.", "language_model."), ("model.", "")])
@pytest.mark.parametrize("packed", [False, True])
def test_case_59_a_block_under_another_prefix(ours: str, theirs: str, packed: bool) -> None:
    """One finding with the prefix, not a thousand with names."""
    tensors = quantized(llama(), awq) if packed else llama()
    moved = {theirs + name[len(ours) :] if name.startswith(ours) else name: entry for name, entry in tensors.items()}
    model = read_model(checkpoint({**LLAMA, **({"quantization_config": AWQ} if packed else {})}, moved))
    findings = [finding for finding in model.findings if finding.severity == "error"]
    (finding,) = findings
    assert finding.code == "TN005"
    assert finding.numbers["expected_prefix"] == ours and finding.numbers["stored_prefix"] == theirs
    assert finding.numbers["count"] == sum(name.startswith(ours) for name in tensors)
    assert "(100 %)" in finding.message


@pytest.mark.parametrize("name", ["odd.weight", "model.layers.1.mlp.odd.weight"])
def test_a_name_that_the_class_does_not_know(name: str) -> None:
    found = verdict(LLAMA, llama() | {name: ("BF16", (8, 8))})
    (finding,) = found.findings
    assert finding.code == "TN002" and finding.where == name and found.starts is False


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.mlp.down_proj.bias",
        "model.layers.1.self_attn.rotary_emb.inv_freq",
        "model.layers.1.self_attn.rotary_emb.cos_cached",
        "model.position_ids",
    ],
)
def test_what_every_class_leaves_out_is_a_remark(name: str) -> None:
    found = verdict(LLAMA, llama() | {name: ("BF16", (8,))})
    assert all(finding.severity == "info" for finding in found.findings) and found.verdict == "ok"


@pytest.mark.parametrize(
    ("name", "severity"),
    [("visual.blocks.0.norm1.weight", "error"), ("mtp.layers.0.mlp.up_proj.weight", "warning")],
)
def test_parts_that_some_classes_drop(name: str, severity: str) -> None:
    """A class for text alone has no place for a tower."""
    (finding,) = verdict(LLAMA, llama() | {name: ("BF16", (8,))}).findings
    assert finding.code == "TN002" and finding.severity == severity


def test_a_renamed_tensor_is_told_with_both_names() -> None:
    renamed = {
        name.replace(".weight_scale", ".weight_scales") if "layers.1.mlp" in name else name: entry
        for name, entry in quantized(llama(), fp8_static).items()
    }
    found = verdict(LLAMA, renamed, FP8_STATIC)
    (finding,) = {one.message: one for one in found.findings}.values()
    assert finding.code == "TN006" and finding.hints[0].what == "rename weight_scales to weight_scale"
    assert found.starts is False


def test_layers_beyond_the_configs_count() -> None:
    """Case 79: num_hidden_layers was cut, or a tool copied back what had been cut."""
    found = verdict({**LLAMA, "num_hidden_layers": 2}, llama())
    (finding,) = found.findings
    assert finding.code == "TN007" and finding.where == "model.layers.2-3 (18 tensors)"
    assert '"num_hidden_layers": 4' in finding.hints[0].what
    assert found.starts is False


def test_cases_73_and_136_draft_layers_are_no_surplus() -> None:
    """Scales for a part of the draft layer that the engine keeps plain; a layer past the count that is declared."""
    config = {**LLAMA, "num_nextn_predict_layers": 1, "num_hidden_layers": 3}
    whole = llama() | {"model.layers.3.shared_head.head.weight_scale": ("F32", ())}
    found = verdict(config, whole)
    assert found.starts is True and problems(found) == []
    assert any("speculative decoding" in finding.message for finding in found.findings)


# Shapes


def test_case_4_a_config_narrower_than_the_tensors() -> None:
    """29440 in the config, 29568 in the files: 128 channels are lost in silence."""
    config = {**LLAMA, "intermediate_size": 29568}
    found = verdict({**LLAMA, "intermediate_size": 29440}, llama(config))
    (finding,) = found.findings
    assert finding.code == "TN003" and finding.severity == "error"
    assert finding.numbers == {
        "fields": ["intermediate_size"],
        "expected": 29440,
        "actual": 29568,
        "lost": 128,
        "count": 12,
        "modules": ["down_proj", "gate_proj", "up_proj"],
    }
    assert "128 channels" in finding.message and any("pad" in hint.what for hint in finding.hints)
    assert found.starts is True and found.verdict == "fail"


@pytest.mark.parametrize("name", ["awq", "gptq", "w4a16", "nvfp4"])
def test_case_4_packed(name: str) -> None:
    how, block = FORMATS[name]
    tensors = quantized(llama({**LLAMA, "intermediate_size": 640}), how)
    found = verdict({**LLAMA, "intermediate_size": 512}, tensors, block)
    (finding,) = of(found, "TN003")
    assert (finding.numbers["expected"], finding.numbers["actual"], finding.numbers["lost"]) == (512, 640, 128)


@pytest.mark.parametrize(("field", "value"), [("intermediate_size", 640), ("hidden_size", 192), ("vocab_size", 500)])
def test_other_differences_stop_the_start(field: str, value: int) -> None:
    """Too few channels, an axis that is not cut, a table of another vocabulary."""
    found = verdict({**LLAMA, field: value}, llama())
    assert any(field in finding.numbers["fields"] for finding in of(found, "TN003")), found.findings
    assert found.starts is False


def test_case_64_zero_points_stored_unpacked() -> None:
    def unpacked(n: int, k: int) -> Tensors:
        return {**w4a16(n, k), "weight_zero_point": ("F16", (n, k // 128))}

    groups = {"group_0": {**W4A16["config_groups"]["group_0"]}}
    groups["group_0"]["weights"] = {**groups["group_0"]["weights"], "symmetric": False}
    found = verdict(LLAMA, quantized(llama(), unpacked), {**W4A16, "config_groups": groups})
    (finding,) = [one for one in found.findings if one.severity == "error" and one.code == "QT008"]
    assert "weight_zero_point" in finding.where and "[32, 2]" in finding.message
    assert not of(found, "TN003") and found.starts is False


def test_case_76_kv_scales_of_two_shapes() -> None:
    heads: Tensors = {f"model.layers.0.self_attn.{x}_scale": ("F32", (2,)) for x in "kv"}
    tensor: Tensors = {f"model.layers.{n}.self_attn.{x}_scale": ("F32", (1,)) for n in (1, 2, 3) for x in "kv"}
    found = verdict(LLAMA, quantized(llama(), fp8_block) | heads | tensor, FP8_BLOCK)
    (finding,) = of(found, "QT016")
    assert finding.severity == "error" and finding.numbers["elements"] == [1, 2]


@pytest.mark.parametrize(
    "spelling", ["k_proj.k_scale", "k_scale", "attn.k_scale", "kv_scale", "k_proj.output_scale", "k_cache.scale"]
)
def test_case_74_kv_scales_under_any_name_are_no_fault(spelling: str) -> None:
    scales: Tensors = {f"model.layers.{n}.self_attn.{spelling}": ("F32", ()) for n in range(4)}
    assert problems(verdict(LLAMA, quantized(llama(), fp8_block) | scales, FP8_BLOCK)) == []


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_case_77_block_scales_of_any_float(dtype: str) -> None:
    def block(n: int, k: int) -> Tensors:
        return {**fp8_block(n, k), "weight_scale_inv": (dtype, (n // 128, k // 128))}

    assert verdict(LLAMA, quantized(llama(), block), FP8_BLOCK).findings == ()


@pytest.mark.parametrize(
    ("block", "starts", "word"),
    [(FP8_BLOCK, True, "fail"), (GPTQ, False, "fail"), (W4A16, False, "fail"), (AWQ, True, "warn")],
    ids=["fp8", "gptq", "w4a16", "awq"],
)
def test_case_13_a_block_left_behind(block: dict[str, Any], starts: bool, word: str) -> None:
    """fp8 weights have the plain one's name and shape and are cast; packed ones have not. AWQ without a list goes by
    the headers and builds a plain model."""
    found = verdict(LLAMA, llama(), block)
    (finding,) = of(found, "QT001")
    assert "0 tensors are quantized and 0 scales" in finding.message
    assert found.starts is starts and found.verdict == word
