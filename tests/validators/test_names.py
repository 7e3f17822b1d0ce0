"""Ignore lists and targets both ways, and the parts of fused layers."""

from __future__ import annotations

from typing import Any

import pytest

from mlload.plan.model import read_model
from tests.plan.tiny_models import tensors_of
from tests.quant.checkpoints import checkpoint
from tests.validators.build import (
    AWQ,
    FP8_BLOCK,
    GPTQ,
    LLAMA,
    NVFP4,
    QWEN3_MOE,
    W4A16,
    Tensors,
    awq,
    fp8_block,
    gptq,
    llama,
    modules,
    nvfp4,
    of,
    problems,
    quantized,
    verdict,
    w4a16,
)

QWEN_VL: dict[str, Any] = {
    **LLAMA,
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "vision_config": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "depth": 2,
        "num_heads": 2,
        "patch_size": 14,
        "out_hidden_size": 256,
    },
}


def down(layer: int) -> Any:
    return lambda module: bool(module == f"model.layers.{layer}.mlp.down_proj")


def ignoring(*names: str) -> dict[str, Any]:
    return {**W4A16, "ignore": ["lm_head", *names]}


def vision() -> Tensors:
    """A vision-language model whose language linears are packed and whose tower is plain."""
    whole = {ref.name: (ref.dtype, ref.shape) for ref in tensors_of(read_model(checkpoint(QWEN_VL))).values()}
    return quantized(whole, w4a16, keep=lambda module: "visual" in module)


TOWER = [
    f"visual.blocks.{block}.{name}"
    for block in (0, 1)
    for name in ("attn.qkv", "attn.proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
] + ["visual.merger.mlp.0", "visual.merger.mlp.2"]


# Lists


def test_a_listed_plain_linear_is_right() -> None:
    tensors = quantized(llama(), w4a16, keep=down(0))
    assert verdict(LLAMA, tensors, ignoring("model.layers.0.mlp.down_proj")).findings == ()
    assert verdict(LLAMA, tensors, ignoring("re:.*layers.0.mlp.down.*")).findings == ()


@pytest.mark.parametrize("entries", [(), ("model.layers.1.mlp.down_proj.weight",), ("layers.0.mlp.down_proj",)])
def test_a_plain_linear_that_the_list_misses(entries: tuple[str, ...]) -> None:
    found = verdict(LLAMA, quantized(llama(), w4a16, keep=down(0)), ignoring(*entries))
    (finding,) = of(found, "NM001")
    assert finding.where == "model.layers.0.mlp.down_proj" and finding.question == "starts"
    assert "model.layers.0.mlp.down_proj" in finding.hints[0].what
    assert found.starts is False


def test_a_plain_linear_under_fp8_is_cast_in_silence() -> None:
    found = verdict(LLAMA, quantized(llama(), fp8_block, keep=down(0)), FP8_BLOCK)
    (finding,) = of(found, "NM001")
    assert finding.question == "right" and found.starts is True and found.verdict == "fail"


def test_awq_without_a_list_goes_by_the_headers() -> None:
    tensors = quantized(llama(), awq, keep=down(0))
    assert verdict(LLAMA, tensors, AWQ).findings == ()
    assert verdict(LLAMA, tensors, {**AWQ, "modules_to_not_convert": ["layers.0.mlp.down_proj"]}).findings == ()
    found = verdict(LLAMA, tensors, {**AWQ, "modules_to_not_convert": ["visual"]})
    assert [finding.code for finding in found.findings] == ["NM001"]


def test_awqs_entries_match_anywhere_in_a_name() -> None:
    """ "mlp.down" was meant for one layer and hits all four."""
    tensors = quantized(llama(), awq, keep=down(0))
    found = verdict(LLAMA, tensors, {**AWQ, "modules_to_not_convert": ["mlp.down"]})
    (finding,) = of(found, "NM002")
    assert finding.where == "model.layers.1-3.mlp.down_proj" and finding.numbers["count"] == 3
    assert found.starts is False


def test_gptq_rules_that_leave_packed_layers_out() -> None:
    dynamic: dict[str, Any] = {"-:model\\.layers\\.0\\.mlp\\.down_proj": {}}
    found = verdict(LLAMA, quantized(llama(), gptq), {**GPTQ, "dynamic": dynamic})
    (finding,) = of(found, "NM002")
    assert finding.where == "model.layers.0.mlp.down_proj"
    assert verdict(LLAMA, quantized(llama(), gptq, keep=down(0)), {**GPTQ, "dynamic": dynamic}).findings == ()


def test_a_list_may_use_the_engines_fused_name() -> None:
    attention = quantized(llama(), fp8_block, keep=lambda module: "layers.0.self_attn" in module)
    listed = ["model.layers.0.self_attn.qkv_proj", "model.layers.0.self_attn.o_proj"]
    assert verdict(LLAMA, attention, {**FP8_BLOCK, "modules_to_not_convert": listed}).findings == ()


def test_case_46_entries_that_end_in_a_wrappers_name() -> None:
    tensors = vision()
    right = verdict(QWEN_VL, tensors, ignoring(*TOWER))
    assert problems(right) == []
    found = verdict(QWEN_VL, tensors, ignoring(*(f"{name}.linear" for name in TOWER)))
    (dead,) = of(found, "QT010")
    assert dead.numbers == {"entries": len(TOWER)} and ".linear" in dead.hints[0].what
    (uncovered,) = of(found, "NM001")
    assert uncovered.severity == "warning" and uncovered.numbers["count"] == len(TOWER)
    assert found.verdict == "warn"


@pytest.mark.parametrize("case", [47, 49, 50])
def test_cases_47_49_and_50_the_list_has_the_names_of_the_files(case: int) -> None:
    """Versions before 0.33 lost such entries in their renaming; this one finds them by the names on disk."""
    listed = {47: "re:visual.*mlp.*", 49: "visual.merger.mlp.0", 50: "visual.blocks.0.attn.qkv"}[case]
    found = verdict(QWEN_VL, vision(), ignoring(*TOWER, listed))
    assert found.starts is True and problems(found) == []


def test_case_52_targets_that_are_full_names() -> None:
    names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    targets = modules(range(4), *names, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    groups = {"group_0": {**W4A16["config_groups"]["group_0"], "targets": targets}}
    assert verdict(LLAMA, quantized(llama(), w4a16), {**W4A16, "config_groups": groups}).findings == ()
    short = {"group_0": {**groups["group_0"], "targets": targets[:-1]}}
    found = verdict(LLAMA, quantized(llama(), w4a16), {**W4A16, "config_groups": short})
    assert of(found, "NM002")[0].where == "model.layers.3.mlp.down_proj"


def test_case_53_some_layers_with_plain_experts() -> None:
    config = {**QWEN3_MOE, "num_hidden_layers": 4}

    def plain(module: str) -> bool:
        return "layers.0.mlp" in module or "layers.1.mlp" in module

    tensors = quantized(llama(config), w4a16, keep=plain)
    listed = [name.removesuffix(".weight") for name in tensors if plain(name)]
    assert problems(verdict(config, tensors, ignoring(*listed, "re:.*mlp.gate$"))) == []
    found = verdict(config, tensors, ignoring("re:.*mlp.gate$"))
    assert found.starts is False and "NM001" in problems(found)


def test_case_56_overrides_that_name_nothing() -> None:
    layers = {"model.language_model.layers.0.mlp.down_proj": {"quant_algo": "FP8"}}
    found = verdict(LLAMA, quantized(llama(), nvfp4), {**NVFP4, "quantized_layers": layers})
    assert "QT015" in [finding.code for finding in found.findings]


# Fused layers


def test_case_55_parts_of_other_widths() -> None:
    """gate with 4 bits, up with 8."""
    tensors = quantized(llama(), gptq, keep=lambda module: module.endswith("up_proj"))
    tensors = quantized(tensors, lambda n, k: gptq(n, k, bits=8))
    found = verdict(LLAMA, tensors, GPTQ)
    (finding,) = of(found, "NM004")
    assert finding.where == "model.layers.0-3.mlp.gate_up_proj"
    assert finding.numbers == {"what": "bits", "values": [4, 8]}
    assert "gate_proj 4" in finding.message and "up_proj 8" in finding.message
    assert found.starts is False


def test_experts_of_one_layer_are_one_fused_layer() -> None:
    """One expert of eight plain, then with 8 bits: the engine has one method for all of them."""
    plain = quantized(llama(QWEN3_MOE), w4a16, keep=lambda module: "layers.0.mlp.experts.3." in module)
    found = verdict(QWEN3_MOE, plain, W4A16)
    (finding,) = found.findings
    assert finding.code == "NM003" and "experts 3 stored plain" in finding.message and found.starts is False
    wide = verdict(QWEN3_MOE, quantized(plain, lambda n, k: w4a16(n, k, bits=8)), W4A16)
    (finding,) = of(wide, "NM004")
    assert finding.where == "model.layers.0.mlp.experts.routed_experts"
    assert "experts 0-2,4-7 4" in finding.message and "experts 3 8" in finding.message


def test_case_71_blocks_kept_under_quark() -> None:
    """The attention keeps its fp8 blocks, the config excludes it, and its scales were renamed."""

    def mxfp4(n: int, k: int) -> Tensors:
        return {"weight": ("U8", (n, k // 2)), "weight_scale": ("U8", (n, k // 32))}

    def kept(n: int, k: int) -> Tensors:
        return {"weight": ("F8_E4M3", (n, k)), "weight_scale": ("F32", (n // 128, k // 128))}

    group = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
    block = {
        "quant_method": "quark",
        "export": {"kv_cache_group": [], "pack_method": "reorder"},
        "global_quant_config": {"weight": group, "input_tensors": {**group, "is_dynamic": True}},
        "layer_quant_config": {},
        "layer_type_quant_config": {},
        "exclude": ["lm_head", "re:.*self_attn.*"],
    }
    tensors = quantized(llama(), mxfp4, keep=lambda module: "self_attn" in module)
    assert verdict(LLAMA, tensors, block).findings == ()
    found = verdict(LLAMA, quantized(tensors, kept), block)
    (finding,) = of(found, "NM002")
    assert "rename weight_scale" in finding.hints[0].what and found.starts is False


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize(("how", "block"), [(w4a16, W4A16), (fp8_block, FP8_BLOCK)], ids=["w4a16", "fp8"])
def test_a_fused_layer_with_one_plain_part(how: Any, block: dict[str, Any], listed: bool) -> None:
    part = "model.layers.0.mlp.up_proj"
    key = "ignore" if "ignore" in block else "ignored_layers"
    whole = {**block, key: [*block.get(key, ()), *([part] if listed else [])]}
    found = verdict(LLAMA, quantized(llama(), how, keep=lambda module: module == part), whole)
    (finding,) = of(found, "NM003")
    assert finding.where == "model.layers.0.mlp.gate_up_proj" and "up_proj stored plain" in finding.message
    # A list that names one part of two is a ValueError; otherwise a plain part under fp8 is cast in silence.
    assert found.starts is (not listed and block is FP8_BLOCK) and found.verdict == "fail"


def test_a_fused_layer_left_out_whole_is_right() -> None:
    parts = ("model.layers.0.mlp.up_proj", "model.layers.0.mlp.gate_proj")
    assert verdict(LLAMA, quantized(llama(), w4a16, keep=lambda m: m in parts), ignoring(*parts)).findings == ()


def test_a_quantized_head_that_the_config_does_not_announce() -> None:
    tensors = {name: entry for name, entry in quantized(llama(), gptq).items() if name != "lm_head.weight"}
    tensors |= {f"lm_head.{suffix}": entry for suffix, entry in gptq(512, 256).items()}
    found = verdict(LLAMA, tensors, GPTQ)
    assert found.starts is False and of(found, "NM002")[0].where == "lm_head"
    assert verdict(LLAMA, tensors, {**GPTQ, "lm_head": True}).findings == ()


def test_no_size_helps_against_a_name() -> None:
    """Nothing is offered where the list is at fault, and everything where it is right."""
    from mlload import profiles
    from mlload.plan.mesh import Mesh
    from mlload.plan.plan import make_plan
    from mlload.validators.context import Request
    from mlload.validators.verdict import at_every_size

    tensors = quantized(llama(), w4a16, keep=down(0))
    for block, codes in ((ignoring(), ["NM001"]), (ignoring("model.layers.0.mlp.down_proj"), [])):
        model = read_model(checkpoint({**LLAMA, "quantization_config": block}, tensors))
        plan = make_plan(model, profiles.load("vllm", "0.33"), Mesh())
        assert [finding.code for finding in at_every_size(plan, Request())] == codes
