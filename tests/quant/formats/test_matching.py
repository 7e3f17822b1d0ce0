"""Ignore lists, targets and overrides, matched as the engine matches them for each method."""

from __future__ import annotations

from typing import Any

import pytest

from mlload.quant.formats import detect, get, matching
from tests.quant.checkpoints import Tensors, checkpoint, codes

LAYER = "model.layers.3."


def test_awq_matches_anywhere_in_the_name() -> None:
    declared = get("awq").declare({"bits": 4, "group_size": 128, "modules_to_not_convert": ["visual", "mlp.gate_proj"]})
    assert declared("visual.blocks.0.attn.proj") is None
    assert declared(LAYER + "mlp.gate_proj") is None
    assert declared(LAYER + "mlp.up_proj") is not None


def test_awq_asks_about_all_experts_at_once() -> None:
    """ "gate" is in every expert's gate_proj, and the engine never looks at that name."""
    declared = get("awq").declare({"bits": 4, "group_size": 128, "modules_to_not_convert": ["gate"]})
    assert declared(LAYER + "mlp.experts.0.gate_proj") is not None
    assert declared(LAYER + "mlp.gate") is None
    assert get("awq").declare({"modules_to_not_convert": ["experts"]})(LAYER + "mlp.experts.0.up_proj") is None


def test_fp8_matches_full_names_only() -> None:
    config = {"ignored_layers": ["lm_head", LAYER + "mlp.down_proj", LAYER + "mlp.experts.0.up_proj"]}
    declared = get("fp8").declare({"activation_scheme": "dynamic", **config})
    assert declared(LAYER + "mlp.down_proj") is None
    assert declared("model.layers.30.mlp.down_proj") is not None
    # One expert listed leaves all of that layer's experts plain: the engine has one method for them.
    assert declared(LAYER + "mlp.experts.7.down_proj") is None
    assert declared("model.layers.4.mlp.experts.0.up_proj") is not None
    # The other name of the list.
    other = get("fp8").declare({"modules_to_not_convert": [LAYER + "mlp.down_proj"]})
    assert other(LAYER + "mlp.down_proj") is None


def group(targets: list[str], bits: int, **weights: Any) -> dict[str, Any]:
    return {"targets": targets, "weights": {"num_bits": bits, "type": "int", "strategy": "channel", **weights}}


def test_compressed_tensors_paths_before_classes() -> None:
    config = {
        "format": "pack-quantized",
        "ignore": ["lm_head", r"re:.*mlp\.gate$", LAYER + "self_attn.o_proj"],
        "config_groups": {
            "group_0": group(["Linear"], 4),
            "group_1": group([r"re:.*down_proj"], 8),
            "group_2": group([LAYER + "self_attn.q_proj"], 2),
        },
    }
    declared = get("compressed-tensors").declare(config)

    def bits(module: str) -> int | None:
        scheme = declared(module)
        return None if scheme is None else scheme.bits

    assert bits(LAYER + "mlp.up_proj") == 4
    assert bits(LAYER + "mlp.down_proj") == 8
    assert bits(LAYER + "self_attn.q_proj") == 2
    assert bits(LAYER + "self_attn.o_proj") is None
    assert bits(LAYER + "mlp.gate") is None
    assert bits("lm_head") is None


def test_compressed_tensors_groups_with_formats_of_their_own() -> None:
    fp8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
    config = {
        "format": "mixed-precision",
        "config_groups": {
            "a": {**group([r"re:.*mlp.*"], 4), "format": "pack-quantized"},
            "b": {"targets": [r"re:.*self_attn.*"], "weights": fp8, "format": "float-quantized"},
            "kv": {"targets": ["LlamaAttention"], "weights": fp8},
        },
    }
    declared = get("compressed-tensors").declare(config)
    mlp, attention = declared(LAYER + "mlp.up_proj"), declared(LAYER + "self_attn.q_proj")
    assert mlp is not None and (mlp.layout, mlp.bits) == ("pack-quantized", 4)
    assert attention is not None and (attention.layout, attention.kind) == ("float-quantized", "float")
    assert declared("model.layers.3.linear_attn.in_proj") is None


def test_full_names_as_targets() -> None:
    """A recipe that lists layer by layer (case 52)."""
    targets = [f"model.layers.{i}.mlp.{p}_proj" for i in (0, 1) for p in ("gate", "up", "down")]
    declared = get("compressed-tensors").declare(
        {"format": "pack-quantized", "config_groups": {"g": group(targets, 4)}}
    )
    assert all(declared(target) is not None for target in targets)
    assert declared("model.layers.2.mlp.up_proj") is None and declared("model.layers.0.self_attn.q_proj") is None


def test_some_layers_experts_plain() -> None:
    """Layers 0 to 3 unquantized and listed, the rest packed (case 53)."""
    ignore = [r"re:model\.layers\.[0-3]\..*experts.*", "lm_head"]
    declared = get("compressed-tensors").declare(
        {"format": "pack-quantized", "ignore": ignore, "config_groups": {"g": group(["Linear"], 4)}}
    )
    assert declared("model.layers.3.mlp.experts.5.up_proj") is None
    assert declared("model.layers.4.mlp.experts.5.up_proj") is not None


def test_four_bit_asymmetric_preset() -> None:
    """symmetric false, strategy group, 4 bits (case 58)."""
    weights = {"symmetric": False, "strategy": "group", "group_size": 128}
    spec, _ = detect(
        checkpoint(
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "format": "pack-quantized",
                    "config_groups": {"g": group(["Linear"], 4, **weights)},
                }
            }
        )
    )
    assert spec is not None and not spec.schemes[0].symmetric and spec.schemes[0].group_size == 128


@pytest.mark.parametrize(
    ("actorder", "kept"),
    [("group", True), ("dynamic", True), (True, True), ("weight", False), ("static", False), (None, False)],
)
def test_actorder(actorder: object, kept: bool) -> None:
    config = {"format": "pack-quantized", "config_groups": {"g": group(["Linear"], 4, actorder=actorder)}}
    scheme = get("compressed-tensors").declare(config)(LAYER + "mlp.up_proj")
    assert scheme is not None and scheme.act_order is kept


def test_modelopt_wildcards() -> None:
    patterns = ["lm_head", "model.layers.3.self_attn*", "mtp.*", "*router*"]
    skipped = matching.modelopt(patterns)
    assert skipped("model.layers.3.self_attn.q_proj") and skipped("lm_head") and skipped("mtp.layers.0.fc")
    assert skipped("model.layers.9.mlp.router")
    assert not skipped("model.layers.3.mlp.up_proj") and not skipped("model.layers.30.self_attn.q_proj")
    assert matching.modelopt(["self_attn"])("model.layers.3.self_attn.q_proj")
    # All experts of a layer are asked about at once.
    assert matching.modelopt(["model.layers.3.mlp.experts*"])("model.layers.3.mlp.experts.7.up_proj")
    assert not matching.modelopt(["*gate*"])("model.layers.3.mlp.experts.7.gate_proj")


def test_modelopt_mixed_precision() -> None:
    config = {
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {
            "model.layers.0.mlp.up_proj": {"quant_algo": "NVFP4", "group_size": 16},
            "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
        },
    }
    declared = get("modelopt").declare(config)
    up, q = declared("model.layers.0.mlp.up_proj"), declared("model.layers.0.self_attn.q_proj")
    assert up is not None and up.layout == "NVFP4" and q is not None and q.layout == "FP8"
    assert declared("model.layers.0.mlp.down_proj") is None


def test_gptq_dynamic_rules() -> None:
    config = {
        "bits": 4,
        "group_size": 128,
        "desc_act": True,
        "sym": True,
        "dynamic": {
            r"-:.*\.mlp\.experts\..*": {},
            r"+:.*\.layers\.1\..*": {"bits": 8, "group_size": 64},
            r".*\.layers\.2\..*": {"group_size": -1},
        },
    }
    declared = get("gptq").declare(config)
    assert declared("model.layers.1.mlp.experts.0.up_proj") is None
    one, two, three = (declared(f"model.layers.{i}.mlp.up_proj") for i in (1, 2, 3))
    assert one is not None and (one.bits, one.group_size) == (8, 64)
    # One group a column: the order of the rows does not matter.
    assert two is not None and two.group_size == -1 and not two.act_order
    assert three is not None and three.act_order and three.bits == 4
    limited = get("gptq").declare({**config, "dynamic": {}, "modules_in_block_to_quantize": [["self_attn.q_proj"]]})
    assert limited("model.layers.0.self_attn.q_proj") is not None and limited("model.layers.0.mlp.up_proj") is None


def test_quark_order_of_look_up() -> None:
    def weights(dtype: str, **more: Any) -> dict[str, Any]:
        return {"weight": {"dtype": dtype, "qscheme": "per_tensor", **more}, "input_tensors": None}

    config = {
        "quant_method": "quark",
        "export": {"pack_method": "reorder", "kv_cache_group": ["*k_proj"]},
        "global_quant_config": weights("fp8_e4m3"),
        "layer_quant_config": {"*.mlp.*": weights("fp4", qscheme="per_group", group_size=32)},
        "exclude": ["lm_head", "re:.*gate$"],
    }
    declared = get("quark").declare(config)
    mlp, attention = declared(LAYER + "mlp.up_proj"), declared(LAYER + "self_attn.q_proj")
    assert mlp is not None and (mlp.layout, mlp.group_size) == ("mxfp4", 32)
    assert attention is not None and attention.layout == "fp8"
    assert declared("lm_head") is None
    spec, _ = detect(checkpoint({"quantization_config": config}))
    assert spec is not None and spec.kv is not None and spec.kv.declared_by == "export.kv_cache_group"


def test_auto_round_writes_others_layouts() -> None:
    base = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True, "data_type": "int"}
    for packing, fmt, layout in (
        ("auto_round:auto_gptq", "gptq", "gptq"),
        ("auto_round:auto_awq", "awq", "gemm"),
        ("auto_round:llm_compressor", "compressed_tensors", "pack-quantized"),
        ("", "gptq", "gptq"),
    ):
        scheme = get("auto-round").declare({**base, "packing_format": packing})(LAYER + "mlp.up_proj")
        assert scheme is not None and (scheme.format, scheme.layout) == (fmt, layout)
    block = get("auto-round").declare(
        {**base, "bits": 8, "data_type": "fp", "group_size": [128, 128], "packing_format": "auto_round:fp8"}
    )(LAYER + "mlp.up_proj")
    assert block is not None and (block.format, block.block) == ("fp8", (128, 128))
    mixed = {**base, "extra_config": {LAYER + "mlp.up_proj": {"bits": 16}, LAYER + "mlp.down_proj": {"bits": 8}}}
    declared = get("auto-round").declare({**mixed, "block_name_to_quantize": "model.layers"})
    down = declared(LAYER + "mlp.down_proj")
    assert declared(LAYER + "mlp.up_proj") is None and down is not None and down.bits == 8
    assert declared("visual.blocks.0.proj") is None


def test_torchao_whole_components() -> None:
    skipped = matching.component(["layers.1", "o_proj"])
    assert skipped("model.layers.1.q_proj") and skipped("model.layers.10.o_proj")
    assert not skipped("model.layers.11.q_proj") and not skipped("model.layers.2.q_proj")


def test_routers_heads_and_tables_are_left() -> None:
    """Where there are no tensors to ask (config-only sources)."""
    declared = get("fp8").declare({"quant_method": "fp8", "activation_scheme": "dynamic"})
    for module in (
        "lm_head",
        "model.embed_tokens",
        "model.norm",
        LAYER + "input_layernorm",
        LAYER + "mlp.gate",
        LAYER + "mlp.router",
        LAYER + "mlp.shared_expert_gate",
        LAYER + "block_sparse_moe.gate",
    ):
        assert declared(module) is None, module
    for module in (LAYER + "mlp.gate_proj", LAYER + "self_attn.kv_a_proj_with_mqa", LAYER + "mlp.experts.3.w1"):
        assert declared(module) is not None, module
    assert get("gptq").declare({"bits": 4, "lm_head": True})("lm_head") is not None


CT4 = {"quant_method": "compressed-tensors", "format": "pack-quantized"}


def with_ignore(ignore: list[str]) -> tuple[Any, Any]:
    tensors: Tensors = {
        "model.layers.0.mlp.up_proj.weight_packed": ("I32", (64, 8)),
        "model.layers.0.mlp.up_proj.weight_scale": ("BF16", (64, 1)),
        "model.layers.0.mlp.up_proj.weight_shape": ("I64", (2,)),
        "model.vision_tower.layers.0.self_attn.q_proj.weight": ("BF16", (8, 8)),
    }
    config = {**CT4, "ignore": ignore, "config_groups": {"g": group(["Linear"], 4)}}
    return detect(checkpoint({"quantization_config": config}, tensors))


def test_wrapper_names_at_the_end_of_entries() -> None:
    """192 entries that end in .linear, longer than any module's name (case 46)."""
    quant, findings = with_ignore(["model.vision_tower.layers.0.self_attn.q_proj.linear", "lm_head"])
    (finding,) = findings
    assert finding.code == "QT010" and finding.severity == "warning" and ".linear" in finding.hints[0].what
    assert quant.scheme_for("model.vision_tower.layers.0.self_attn.q_proj") is None


def test_entries_for_layers_that_do_not_exist() -> None:
    _, findings = with_ignore(["model.layers.77.mlp.up_proj"])
    assert codes(findings) == ["QT010"] and findings[0].severity == "info"
    # Habits of recipes are not worth a word.
    _, findings = with_ignore(["lm_head", "re:.*mtp.*", "re:visual.*", "model.vision_tower"])
    assert findings == ()
