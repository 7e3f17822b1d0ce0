"""Declared against stored: the reported faults, smallest input each."""

from __future__ import annotations

from typing import Any

import pytest

from mlload.quant.formats import detect, roles, spec
from mlload.quant.spec import Scheme
from tests.quant.checkpoints import Tensors, checkpoint, codes, linear

AWQ = Scheme("awq", "gemm", 4, "int", "group", 128, symmetric=False)
GPTQ = Scheme("gptq", "gptq", 4, "int", "group", 128)
AWQ_CONFIG = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ_CONFIG = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
FP8_CONFIG = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def quantized(config: dict[str, Any], tensors: Tensors, **more: Any) -> Any:
    return detect(checkpoint({"quantization_config": config}, tensors, **more))


def layer(scheme: Scheme, n: int = 256, k: int = 512, path: str = "model.layers.0.mlp.down_proj") -> Tensors:
    plain = {"model.embed_tokens.weight": ("BF16", (1024, 256)), "model.norm.weight": ("BF16", (256,))}
    return linear(path, spec(scheme, n, k), n, k) | plain


def test_plain_model() -> None:
    assert detect(checkpoint({}, {"model.layers.0.mlp.down_proj.weight": ("BF16", (8, 8))})) == (None, ())
    assert detect(checkpoint({}, {})) == (None, ())


@pytest.mark.parametrize(("config", "scheme"), [(AWQ_CONFIG, AWQ), (GPTQ_CONFIG, GPTQ)], ids=["awq", "gptq"])
def test_healthy(config: dict[str, Any], scheme: Scheme) -> None:
    quant, findings = quantized(config, layer(scheme))
    assert findings == ()
    assert quant.method == config["quant_method"] and quant.schemes == (scheme,)
    assert quant.scheme_for("model.layers.0.mlp.down_proj") == scheme
    assert quant.scheme_for("model.embed_tokens") is None
    assert quant.declared_in == "config.json"


def test_leftover_block() -> None:
    """Weights converted back to bf16, fp8 block left in the config (case 13)."""
    tensors = {f"model.layers.{i}.self_attn.q_proj.weight": ("BF16", (576, 7168)) for i in range(3)}
    quant, findings = quantized(FP8_CONFIG, tensors)
    assert quant is None
    (finding,) = findings
    assert (finding.code, finding.severity) == ("QT001", "error")
    assert "fp8" in finding.message and "3 matrices" in finding.message and "0 scales" in finding.message


def test_gguf_beside_a_foreign_config() -> None:
    """GGUF weights in a folder whose config.json says fp8 (case 38)."""
    tensors = {"blk.0.ffn_down.weight": ("Q4_K", (256, 512)), "output.weight": ("Q6_K", (512, 256))}
    quant, findings = quantized(FP8_CONFIG, tensors, container="gguf")
    assert quant.method == "gguf" and codes(findings) == ["QT007"]
    assert {scheme.layout for scheme in quant.schemes} == {"Q4_K", "Q6_K"}
    assert quant.scheme_for("blk.0.ffn_down").group_size == 256


def test_nested_config_and_packed_words() -> None:
    """Declared under text_config, 4 bits only in the group (cases 40 and 41)."""
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group"}}
    block = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": group}}
    scheme = Scheme("compressed_tensors", "pack-quantized", 4, "int", "group", 32)
    path = "language_model.model.layers.1.mlp.experts.7.up_proj"
    quant, findings = detect(checkpoint({"text_config": {"quantization_config": block}}, layer(scheme, path=path)))
    assert findings == () and quant is not None
    assert quant.declared_in == "text_config" and quant.schemes == (scheme,)
    assert quant.scheme_for(path) == scheme
    # The older key.
    quant, _ = detect(checkpoint({"compression_config": block}, {}))
    assert quant is not None and quant.method == "compressed-tensors"


def test_fp4_experts_under_an_fp8_config() -> None:
    """expert_dtype fp4 says that experts are narrower than the rest (case 43)."""
    tensors: Tensors = {
        "layers.0.attn.wq.weight": ("F8_E4M3", (256, 512)),
        "layers.0.attn.wq.scale": ("F8_E8M0", (2, 4)),
        "layers.0.ffn.experts.3.w1.weight": ("I8", (256, 256)),
        "layers.0.ffn.experts.3.w1.scale": ("F8_E8M0", (256, 16)),
    }
    quant, findings = quantized({**FP8_CONFIG, "expert_dtype": "fp4"}, tensors)
    assert findings == ()
    assert quant.scheme_for("layers.0.attn.wq").bits == 8
    expert = quant.scheme_for("layers.0.ffn.experts.3.w1")
    assert (expert.bits, expert.kind, expert.group_size) == (4, "mx", 32)


def test_per_layer_width_override_that_matches_nothing() -> None:
    """6 bits stored, default 4 declared: 5120 * 6 / 32 = 960 columns (case 56)."""
    config = {"quantization": {"bits": 4, "group_size": 64, "model.language_model.layers.0.in_proj_qkv": {"bits": 6}}}
    path = "language_model.model.layers.0.in_proj_qkv"
    tensors: Tensors = {
        f"{path}.weight": ("U32", (10240, 960)),
        f"{path}.scales": ("BF16", (10240, 80)),
        f"{path}.biases": ("BF16", (10240, 80)),
    }
    quant, findings = detect(checkpoint(config, tensors))
    assert quant is not None and quant.scheme_for(path).bits == 6
    mismatch = next(f for f in findings if f.code == "QT006")
    assert mismatch.numbers == {"declared": 4, "stored": 6} and "960" in mismatch.message
    dead = next(f for f in findings if f.code == "QT015")
    assert "model.language_model.layers.0.in_proj_qkv" in dead.message


def test_widths_per_layer() -> None:
    """int4 and int8 layers in one GPTQ checkpoint (case 80)."""
    eight = Scheme("gptq", "gptq", 8, "int", "group", 128)
    tensors = layer(GPTQ, path="model.layers.0.mlp.up_proj") | layer(eight, path="model.layers.1.mlp.up_proj")
    quant, findings = quantized(GPTQ_CONFIG, tensors)
    assert {scheme.bits for scheme in quant.schemes} == {4, 8}
    assert sorted(codes(findings)) == ["QT006", "QT013"]
    # Declared by a dynamic rule, nothing is wrong.
    rule = {**GPTQ_CONFIG, "dynamic": {r"+:.*\.layers\.1\..*": {"bits": 8}}}
    quant, findings = quantized(rule, tensors)
    assert findings == () and quant.scheme_for("model.layers.1.mlp.up_proj").bits == 8


@pytest.mark.parametrize(
    ("config", "stored", "found"), [(AWQ_CONFIG, GPTQ, "gptq"), (GPTQ_CONFIG, AWQ, "awq")], ids=["awq", "gptq"]
)
def test_label_contradicts_the_axes(config: dict[str, Any], stored: Scheme, found: str) -> None:
    """AWQ packs along N, GPTQ along K; the tensors decide (case 134)."""
    quant, findings = quantized(config, layer(stored))
    assert quant.schemes[0].format == found and quant.method == found
    (finding,) = findings
    assert (finding.code, finding.severity) == ("QT004", "error")
    assert finding.numbers["n"] == 256 and found in finding.message


def test_awq_for_another_kernel() -> None:
    gemv = Scheme("awq", "gemv", 4, "int", "group", 64, symmetric=False)
    quant, findings = quantized({**AWQ_CONFIG, "group_size": 64, "version": "gemv"}, layer(gemv))
    assert quant.schemes == (gemv,) and codes(findings) == ["QT005"]
    # The label says gemm and the tensors say gemv.
    quant, findings = quantized({**AWQ_CONFIG, "group_size": 64}, layer(gemv))
    assert quant.schemes[0].layout == "gemv" and "QT005" in codes(findings)
    fast = Scheme("awq", "gemv_fast", 4, "int", "group", 128, symmetric=False)
    quant, findings = quantized(AWQ_CONFIG, layer(fast))
    assert quant.schemes[0].layout == "gemv_fast" and "QT005" in codes(findings)


def test_gptq_for_another_kernel() -> None:
    tensors: Tensors = {
        "model.layers.0.mlp.down_proj.B": ("I32", (32, 512)),
        "model.layers.0.mlp.down_proj.s": ("F16", (4, 256)),
        "model.layers.0.mlp.down_proj.workspace": ("I32", (32,)),
    }
    quant, findings = quantized({**GPTQ_CONFIG, "is_marlin_format": True}, tensors)
    assert quant.schemes[0].layout == "marlin" and codes(findings) == ["QT005"]
    assert roles(quant.schemes[0]).required == {"B", "s"}


def test_group_size_differs() -> None:
    g64 = Scheme("gptq", "gptq", 4, "int", "group", 64)
    quant, findings = quantized(GPTQ_CONFIG, layer(g64))
    assert quant.schemes[0].group_size == 64
    assert codes(findings) == ["QT006"] and findings[0].numbers == {"declared": 128, "stored": 64}


def test_zero_points_stored_unpacked() -> None:
    """weight_zero_point of the scale's shape and dtype (case 64)."""
    group = {
        "targets": ["Linear"],
        "weights": {"num_bits": 4, "type": "int", "group_size": 128, "strategy": "group", "symmetric": False},
    }
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": group}}
    tensors = layer(Scheme("compressed_tensors", "pack-quantized", 4, "int", "group", 128, symmetric=False))
    _, findings = quantized(config, tensors)
    assert findings == ()
    path = "model.layers.0.mlp.down_proj"
    tensors[f"{path}.weight_zero_point"] = ("F16", (256, 4))
    _, findings = quantized(config, tensors)
    (finding,) = findings
    assert finding.code == "QT008" and f"{path}.weight_zero_point" in finding.where and "[32, 4]" in finding.message


def test_side_file_only() -> None:
    """quantize_config.json alone: vLLM does not look there without --quantization."""
    side = {"quantize_config.json": {key: value for key, value in GPTQ_CONFIG.items() if key != "quant_method"}}
    quant, findings = detect(checkpoint({}, {}, side_files=side))
    assert quant is not None and quant.method == "gptq" and quant.declared_in == "quantize_config.json"
    (finding,) = findings
    assert finding.code == "QT002" and finding.severity == "warning"
    assert finding.hints[0].command == "--quantization gptq"
    quant, findings = detect(checkpoint({}, layer(GPTQ), side_files=side))
    assert quant is not None and codes(findings) == ["QT002"]
    old = {"quant_config.json": {"zero_point": True, "q_group_size": 128, "w_bit": 4, "version": "GEMM"}}
    quant, findings = detect(checkpoint({}, layer(AWQ), side_files=old))
    assert quant is not None and quant.schemes == (AWQ,) and codes(findings) == ["QT002"]


def test_block_without_a_method() -> None:
    """The algorithm at the top of the block and no quant_method: vLLM overlooks it."""
    block = {"quant_algo": "FP8", "kv_cache_scheme": "FP8", "ignore": ["lm_head"], "producer": {"name": "modelopt"}}
    quant, findings = detect(checkpoint({"quantization_config": block}))
    assert quant is not None and quant.method == "modelopt" and quant.schemes[0].layout == "FP8"
    assert codes(findings) == ["QT003"]
    assert quant.kv is not None and quant.kv.bits == 8


def test_legacy_modelopt_file_counts() -> None:
    nested = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}
    side = {"hf_quant_config.json": {"producer": {"name": "modelopt"}, "quantization": nested}}
    quant, findings = detect(checkpoint({}, {}, side_files=side))
    assert quant is not None and findings == ()
    assert (quant.method, quant.declared_in, quant.ignore) == ("modelopt_fp4", "hf_quant_config.json", ("lm_head",))
    assert quant.scheme_for("lm_head") is None
    scheme = quant.scheme_for("model.layers.0.mlp.up_proj")
    assert scheme is not None and (scheme.layout, scheme.activation) == ("NVFP4", "static")


def test_packed_tensors_that_nobody_declares() -> None:
    quant, findings = detect(checkpoint({}, layer(AWQ)))
    assert quant is not None and quant.method == "awq" and codes(findings) == ["QT014"]
    quant, findings = detect(checkpoint({}, layer(Scheme("fp8", "block", 8, "float", "block", 128, (128, 128)))))
    assert quant is not None and quant.method == "fp8" and quant.schemes[0].block == (128, 128)


def test_unknown_method() -> None:
    quant, findings = detect(checkpoint({"quantization_config": {"quant_method": "aqlm"}}))
    assert quant is None and codes(findings) == ["QT012"]


def test_two_declarations() -> None:
    side = {"quantize_config.json": GPTQ_CONFIG}
    quant, findings = detect(checkpoint({"quantization_config": AWQ_CONFIG}, layer(AWQ), side_files=side))
    assert quant is not None and quant.method == "awq" and codes(findings) == ["QT019"]
    # The same one twice is how writers leave it.
    quant, findings = detect(checkpoint({"quantization_config": GPTQ_CONFIG}, layer(GPTQ), side_files=side))
    assert findings == ()


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F8_E8M0"])
def test_scale_dtypes(dtype: str) -> None:
    """Block scales may be f32, bf16 or e8m0 (cases 77 and 139)."""
    scheme = Scheme("fp8", "block", 8, "float", "block", 128, (128, 128))
    tensors = linear("model.layers.0.mlp.up_proj", spec(scheme, 256, 512), 256, 512, dtype)
    quant, findings = quantized(FP8_CONFIG, tensors)
    assert findings == () and quant.schemes[0].block == (128, 128)


def test_mixed_group_scales_of_mx() -> None:
    """e8m0 scales as U8 or F8_E8M0 [.., K/32] (case 139)."""
    for dtype in ("U8", "F8_E8M0"):
        tensors: Tensors = {
            "model.layers.0.mlp.up_proj.weight": ("F8_E4M3", (256, 512)),
            "model.layers.0.mlp.up_proj.weight_scale": (dtype, (256, 16)),
        }
        quant, _ = quantized({"quant_method": "modelopt", "quant_algo": "MXFP8"}, tensors)
        assert quant.schemes[0].layout == "MXFP8"


def test_kv_scales_of_every_spelling() -> None:
    """k_proj.k_scale, self_attn.kv_scale, ...: known, and never a reason to fail (case 74)."""
    base = layer(Scheme("fp8", "block", 8, "float", "block", 128, (128, 128)))
    for ending in ("k_proj.k_scale", "kv_scale", "k_scale", "k_proj.output_scale"):
        quant, findings = quantized(FP8_CONFIG, base | {f"model.layers.0.self_attn.{ending}": ("F32", ())})
        assert findings == () and quant.kv is not None and quant.kv.declared_by == "tensors"


def test_kv_scales_per_head_and_per_tensor() -> None:
    """One element here, one per KV head there: an engine reads one form (case 76)."""
    base = layer(Scheme("fp8", "block", 8, "float", "block", 128, (128, 128)))
    per_head = base | {f"model.layers.{i}.self_attn.k_scale": ("F32", (8, 1, 1)) for i in range(2)}
    quant, findings = quantized(FP8_CONFIG, per_head)
    assert findings == () and quant.kv.strategy == "attn_head"
    quant, findings = quantized(FP8_CONFIG, per_head | {"model.layers.1.self_attn.k_scale": ("F32", (1,))})
    assert codes(findings) == ["QT016"] and findings[0].numbers == {"elements": [1, 8]}


def test_routers_and_heads_follow_the_tensors() -> None:
    """With headers the tensors say what is quantized: a packed lm_head is, a plain router is not."""
    tensors = layer(GPTQ, path="model.layers.0.mlp.experts.0.up_proj") | linear(
        "lm_head", spec(GPTQ, 1024, 256), 1024, 256
    )
    tensors["model.layers.0.mlp.gate.weight"] = ("F16", (8, 256))
    quant, _ = quantized(GPTQ_CONFIG, tensors)
    assert quant.scheme_for("model.layers.0.mlp.gate") is None
    assert quant.scheme_for("lm_head").format == "gptq"


def test_stacked_mxfp4_experts() -> None:
    tensors: Tensors = {
        "model.layers.0.mlp.experts.gate_up_proj_blocks": ("U8", (4, 128, 2, 16)),
        "model.layers.0.mlp.experts.gate_up_proj_scales": ("U8", (4, 128, 2)),
        "model.layers.0.mlp.experts.gate_up_proj_bias": ("BF16", (4, 128)),
        "model.layers.0.self_attn.q_proj.weight": ("BF16", (64, 64)),
        "model.layers.0.mlp.router.weight": ("BF16", (4, 64)),
    }
    quant, findings = quantized({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, tensors)
    assert findings == () and quant.method == "mxfp4"
    assert quant.scheme_for("model.layers.0.mlp.experts.gate_up_proj").layout == "gpt_oss"
    assert quant.scheme_for("model.layers.0.self_attn.q_proj") is None


def test_malformed_configs_are_not_a_reason_to_stop() -> None:
    for block in (
        {"quant_method": 7, "bits": "four"},
        {"quant_method": "gptq", "bits": [4], "group_size": {"a": 1}, "dynamic": ["x"], "sym": "no"},
        {"quant_method": "gptq", "bits": 0, "group_size": 0, "dynamic": {"+:(": {"bits": 8}}},
        {"quant_method": "compressed-tensors", "config_groups": [1], "ignore": {"a": 1}},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": 3, "weights": {"num_bits": "x"}}}},
        {"quant_method": "fp8", "weight_block_size": [0, -1], "ignored_layers": 5},
        {"quant_method": "fp8", "weight_block_size": "128x128x3"},
        {"quant_method": "modelopt", "quantized_layers": {"a": 1}, "quant_algo": 5},
        {"quant_method": "quark", "layer_quant_config": {"re:(": {"weight": []}}, "export": []},
        {"quant_method": "auto-round", "extra_config": {"(": {"bits": 8}}, "group_size": [1, 2, 3]},
        {"quant_method": "bitsandbytes", "bnb_4bit_quant_type": 4},
        {"quant_method": "torchao", "quant_type": {"default": []}},
    ):
        for tensors in ({}, layer(GPTQ), layer(AWQ), {"model.layers.0.mlp.up_proj.qweight": ("I32", ())}):
            quant, _ = detect(checkpoint({"quantization_config": block}, tensors))
            if quant is not None:
                quant.scheme_for("model.layers.0.mlp.up_proj")


def test_block_scales_under_another_name() -> None:
    """_scale_inv written as _scale: a block-fp8 engine looks for the former (case 71)."""
    tensors: Tensors = {
        "model.layers.0.self_attn.q_a_proj.weight": ("F8_E4M3", (256, 512)),
        "model.layers.0.self_attn.q_a_proj.weight_scale": ("F32", (2, 4)),
    }
    _, findings = quantized(FP8_CONFIG, tensors)
    (finding,) = findings
    assert finding.code == "QT008" and finding.numbers == {"missing": ["weight_scale_inv"], "stored": ["weight_scale"]}
    assert finding.hints[0].what == "rename weight_scale to weight_scale_inv"


def test_settings_of_the_wrong_kind() -> None:
    _, findings = quantized({**GPTQ_CONFIG, "bits": "four"}, layer(GPTQ))
    assert codes(findings) == ["QT018"] and "bits is 'four'" in findings[0].message


@pytest.mark.parametrize("missing", ["qzeros", "input_scale", "weight_zero_point"])
def test_what_is_declared_and_not_stored_is_still_asked_for(missing: str) -> None:
    """An expert without its input scale, a layer without its zero points (case 65)."""
    group = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": False}
    config, scheme = {
        "qzeros": (AWQ_CONFIG, AWQ),
        "input_scale": (
            {"quant_method": "modelopt", "quant_algo": "NVFP4"},
            Scheme("modelopt", "NVFP4", 4, "float", "tensor_group", 16, activation="static", activation_bits=4),
        ),
        "weight_zero_point": (
            {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": {"g": {"targets": ["Linear"], "weights": group}},
            },
            Scheme("compressed_tensors", "pack-quantized", 4, "int", "group", 128, symmetric=False),
        ),
    }[missing]
    path = "model.layers.0.mlp.experts.17.up_proj"
    whole = layer(scheme, path=path.replace("17", "16"))
    damaged = layer(scheme, path=path)
    del damaged[f"{path}.{missing}"]
    quant, _ = quantized(config, whole | damaged)
    expected = quant.scheme_for(path)
    assert expected == scheme
    assert missing in roles(expected).required


def test_packed_tensors_of_no_known_form() -> None:
    """A method that is not known here, or tensors unlike its own: not taken for a leftover block."""
    tensors: Tensors = {
        "model.layers.0.mlp.up_proj.codes": ("I16", (32, 64, 2)),
        "model.layers.0.mlp.up_proj.codebooks": ("F16", (2, 65536, 1, 8)),
    }
    quant, findings = quantized({"quant_method": "aqlm"}, tensors)
    assert quant is None and codes(findings) == ["QT012", "QT008"]
    quant, findings = quantized(FP8_CONFIG, tensors)
    assert quant is not None and codes(findings) == ["QT008"]


def test_withdrawn_sparse_layouts() -> None:
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "channel"}}
    config = {"quant_method": "compressed-tensors", "format": "marlin-24", "config_groups": {"g": group}}
    path = "model.layers.0.mlp.up_proj"
    tensors: Tensors = {
        f"{path}.weight_packed": ("I32", (16, 512)),
        f"{path}.scale_packed": ("F16", (1, 256)),
        f"{path}.meta": ("I16", (256, 32)),
    }
    quant, findings = quantized(config, tensors)
    assert quant.schemes[0].layout == "marlin-24" and codes(findings) == ["QT005"]


@pytest.mark.parametrize(("bits", "group"), [(4, 32), (8, 64), (4, 128), (2, 64)])
def test_packed_shapes_that_fit_two_widths_go_by_the_models_own(bits: int, group: int) -> None:
    """4 bits in groups of 64 with K = 1536: [N, 192] words and 24 scales, as 8 bits in groups of 32 would have."""
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "group", "group_size": group}
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }
    tensors: Tensors = {"model.norm.weight": ("BF16", (576,))}
    for name, n, k in (("up_proj", 1536, 576), ("down_proj", 576, 1536)):
        tensors |= {
            f"model.layers.0.mlp.{name}.weight_packed": ("I32", (n, k // 8)),
            f"model.layers.0.mlp.{name}.weight_scale": ("BF16", (n, k // 64)),
            f"model.layers.0.mlp.{name}.weight_shape": ("I64", (2,)),
        }
    spec, findings = detect(checkpoint({"quantization_config": config}, tensors))
    assert spec is not None
    assert {(scheme.bits, scheme.group_size) for scheme in spec.schemes} == {(4, 64)}
    (finding,) = [finding for finding in findings if finding.code == "QT006"]
    declared = f"{bits} bits declared, 4 stored" if bits != 4 else f"group size {group} declared, 64 stored"
    assert declared in finding.message
