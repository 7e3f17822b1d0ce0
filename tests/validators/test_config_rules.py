"""Config fields that are missing or mislead: each reported fault by its number, and what the rules say besides."""

from __future__ import annotations

from typing import Any

import pytest

from mlload.plan.mesh import Mesh
from mlload.plan.model import read_model
from mlload.validators.lengths import derived_max_model_len
from tests.quant.checkpoints import checkpoint
from tests.validators.build import (
    AWQ,
    FP8_BLOCK,
    LLAMA,
    NVFP4,
    QWEN3_MOE,
    W4A16,
    Tensors,
    awq,
    fp8_block,
    llama,
    nvfp4,
    of,
    problems,
    quantized,
    verdict,
    w4a16,
)


def nested(text: dict[str, Any], **outer: Any) -> dict[str, Any]:
    """A composite whose language model's fields sit in text_config."""
    return {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": "mistral3",
        "text_config": {**text, "model_type": "mistral"},
        **outer,
    }


# The reported faults


def test_case_22_a_rope_type_of_default_means_unscaled() -> None:
    config = {**LLAMA, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    assert verdict(config, llama()).findings == ()


@pytest.mark.parametrize(
    "rope",
    [
        {"type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ],
    ids=["old key", "new key"],
)
def test_case_23_both_spellings_of_the_rope_type(rope: dict[str, Any]) -> None:
    assert verdict({**LLAMA, "rope_scaling": rope}, llama()).findings == ()


def test_case_25_head_dim_was_dropped() -> None:
    """hidden 4096, 24 heads, 8 KV heads; q_proj [3072, 4096] and k_proj [1024, 4096] say 128, 4096 // 24 is 170."""
    config = {
        **LLAMA,
        "hidden_size": 4096,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "num_hidden_layers": 1,
    }
    tensors = llama({**config, "head_dim": 128})
    del config["head_dim"]
    found = verdict(config, tensors)
    (finding,) = of(found, "CF003")
    assert finding.numbers == {"default": 170, "actual": 128, "q_rows": 3072, "k_rows": 1024}
    assert '"head_dim": 128' in finding.hints[0].what
    assert found.starts is False and found.verdict == "fail"
    assert not of(verdict({**config, "head_dim": 128}, tensors), "CF003")


def test_case_25_heads_wider_than_the_default_are_cut_in_silence() -> None:
    config = {**LLAMA, "hidden_size": 256, "num_attention_heads": 4}
    tensors = llama({**config, "head_dim": 128})
    del config["head_dim"]
    (finding,) = of(verdict(config, tensors), "CF003")
    assert finding.question == "right" and finding.numbers["default"] == 64


def test_case_26_validation_of_some_transformers_versions() -> None:
    config = {**LLAMA, "hidden_size": 1792, "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128}
    found = verdict({**config, "num_hidden_layers": 1}, llama({**config, "num_hidden_layers": 1}))
    (finding,) = of(found, "CF004")
    assert finding.severity == "warning" and "1792 % 24 = 16" in finding.message
    assert "validate_architecture" in finding.message
    assert problems(found) == ["CF004"]  # the shapes are sound
    assert not of(verdict({**config, "hidden_size": 3072, "num_hidden_layers": 1}, {}), "CF004")


def test_case_28_a_tied_head_without_one_in_the_files_passes() -> None:
    assert verdict({**LLAMA, "tie_word_embeddings": True}, llama(head=False)).findings == ()


def test_case_29_neither_stored_nor_tied() -> None:
    found = verdict(LLAMA, llama(head=False))
    (finding,) = of(found, "CF005")
    assert finding.severity == "error" and len(finding.hints) == 2
    assert found.verdict == "fail" and found.starts is True  # vLLM does not check tables
    embedding = {**LLAMA, "architectures": ["LlamaModel"]}
    assert all(one.severity == "info" for one in of(verdict(embedding, llama(head=False)), "CF005"))


def test_case_31_tied_in_the_nested_config_only() -> None:
    """Versions of transformers differ in which of the two they follow."""
    inner = {**LLAMA, "tie_word_embeddings": True}
    plain = llama(LLAMA, head=False)
    tensors = {f"language_model.{name}": entry for name, entry in plain.items()}
    outer_false = verdict(nested(inner, tie_word_embeddings=False), tensors)
    (finding,) = of(outer_false, "CF007")
    assert finding.severity == "warning" and finding.numbers == {"outer": False, "nested": True}
    assert finding.hints[0].what == "set both to true"


def test_case_32_tied_and_stored_as_well() -> None:
    tied = {**LLAMA, "tie_word_embeddings": True}
    found = verdict(tied, quantized(llama(), awq), AWQ)
    (finding,) = of(found, "CF006")
    assert finding.severity == "info" and "safe to drop" in finding.message
    assert found.verdict == "ok"
    # Not counted twice: 512 rows of 256.
    with_head, without = (read_model(checkpoint(tied, llama(head=head))) for head in (True, False))
    assert with_head.parameters_total == without.parameters_total


def test_case_34_a_tied_head_that_modelopt_excludes() -> None:
    found = verdict({**LLAMA, "tie_word_embeddings": True}, quantized(llama(head=False), nvfp4), NVFP4)
    assert found.starts is True and problems(found) == []


def test_case_35_a_head_of_as_many_rows_as_the_vocabulary() -> None:
    config = {**LLAMA, "vocab_size": 30720}
    assert verdict(config, llama(config)).findings == ()
    taller = llama(config) | {"lm_head.weight": ("BF16", (31744, 256))}
    (finding,) = of(verdict(config, taller), "TN003")
    assert finding.question == "starts"  # tables are compared with the vocabulary, not cut
    assert finding.numbers["expected"] == 30720 and finding.numbers["actual"] == 31744


def test_case_37_two_files_that_disagree() -> None:
    side = {"hf_quant_config.json": {"quantization": {"quant_algo": "FP8", "exclude_modules": []}}}
    model = read_model(checkpoint({**LLAMA, "quantization_config": NVFP4}, quantized(llama(), nvfp4), side_files=side))
    assert [finding.code for finding in model.findings if finding.severity == "warning"] == ["QT019"]


@pytest.mark.parametrize("where", ["top", "text_config"])
def test_cases_40_and_41_parameters_are_not_packed_words(where: str) -> None:
    """int4 packed eight to a word, with the block under text_config and the bits inside a group."""
    layers = 4 * (256 * (256 + 128 + 128 + 256) + 3 * 256 * 512 + 2 * 256)
    total = layers + 256 + 2 * 512 * 256
    tensors = quantized(llama(), w4a16)
    if where == "top":
        model = read_model(checkpoint({**LLAMA, "quantization_config": W4A16}, tensors))
    else:
        text = {**LLAMA, "quantization_config": W4A16}
        model = read_model(
            checkpoint(nested(text), {f"language_model.{name}": entry for name, entry in tensors.items()})
        )
    assert model.quant is not None and model.quant.schemes[0].bits == 4
    language = sum(p.elements for p in model.params if p.spec.mesh == "text" and p.component != "projector")
    assert language == total


def test_case_43_experts_of_four_bits_under_an_fp8_block() -> None:
    """`expert_dtype: fp4`: the width of each tensor counts, not the config's one."""

    def fp4(n: int, k: int) -> Tensors:
        return {"weight": ("I8", (n, k // 2)), "weight_scale_inv": ("F8_E8M0", (n, k // 32))}

    plain = llama(QWEN3_MOE)
    experts = quantized(plain, fp4, keep=lambda module: ".experts." not in module)
    tensors = quantized(experts, fp8_block, keep=lambda module: ".experts." in module)
    model = read_model(checkpoint({**QWEN3_MOE, "quantization_config": {**FP8_BLOCK, "expert_dtype": "fp4"}}, tensors))
    per_expert = 3 * 256 * 256
    experts_total = sum(p.elements for p in model.params if p.component == "experts")
    assert experts_total == 2 * 8 * per_expert
    assert {p.scheme.bits for p in model.params if p.component == "experts" and p.scheme} == {4}


def test_case_44_experts_and_an_untied_head_are_counted_without_files() -> None:
    config = {
        **LLAMA,
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 32000,
    }
    model = read_model(checkpoint(config))
    assert round(model.parameters_total / 1e9, 1) == 46.7
    assert round(model.parameters_active / 1e9, 1) == 12.9


# Each rule by itself


@pytest.mark.parametrize("value", ["64", -1, 2.5, [1]])
def test_a_size_that_is_none(value: Any) -> None:
    found = verdict({**LLAMA, "num_hidden_layers": value}, {})
    assert of(found, "CF001")[0].where == "config.json: num_hidden_layers"
    assert found.starts is False


def test_no_model_type() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "model_type"}
    assert [finding.code for finding in of(verdict(config, llama()), "CF002")] == ["CF002"]


def test_two_nested_language_models() -> None:
    config = nested(LLAMA, llm_config={"hidden_size": 64})
    assert of(verdict(config, {}), "CF008")[0].numbers["found"] == ["text_config", "llm_config"]


@pytest.mark.parametrize(
    ("rope", "words"),
    [
        ({"rope_type": "spiral", "factor": 2.0}, "'spiral'"),
        ({"rope_type": "yarn", "factor": 2.0}, "original_max_position_embeddings"),
        ({"rope_type": "yarn", "type": "linear", "factor": 2.0}, "only one"),
        ({"rope_type": "llama3", "factor": 8.0}, "low_freq_factor and high_freq_factor"),
    ],
)
def test_rope_that_no_engine_builds(rope: dict[str, Any], words: str) -> None:
    found = verdict({**LLAMA, "rope_scaling": rope}, llama())
    (finding,) = of(found, "CF009")
    assert words in finding.message and found.starts is False


def test_a_context_longer_than_the_positions() -> None:
    assert not of(verdict(LLAMA, llama(), max_model_len=1024), "CF010")
    found = verdict(LLAMA, llama(), max_model_len=1025)
    assert of(found, "CF010")[0].numbers == {"asked": 1025, "derived": 1024} and found.starts is False


def test_a_longer_context_that_the_engine_is_told_to_serve() -> None:
    found = verdict(LLAMA, llama(), max_model_len=1025, long_allowed=True)
    assert of(found, "CF010")[0].severity == "warning" and (found.starts, found.verdict) == (True, "warn")


def test_a_scaling_that_nobody_meant() -> None:
    for length, factor in ((10**400, 2.5), (1024, 1e308), (1024, float("inf"))):
        config = {**LLAMA, "max_position_embeddings": length, "rope_scaling": {"rope_type": "linear", "factor": factor}}
        assert verdict(config, llama(), max_model_len=1024).starts is not None


def test_the_scaled_context_counts() -> None:
    scaled = {**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    assert not of(verdict(scaled, llama(), max_model_len=4096), "CF010")
    assert of(verdict(scaled, llama(), max_model_len=4097), "CF010")
    model = read_model(checkpoint({**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, llama()))
    derived = derived_max_model_len(model.checkpoint, model.config)
    assert derived is not None and derived.length == 1024  # yarn's positions count the scaling already


def test_draft_layers_that_were_lost() -> None:
    """Case 79: the field is set, and saving dropped the tensors."""
    from tests.plan.tiny_models import DEEPSEEK, tensors_of

    model = read_model(checkpoint(DEEPSEEK))
    lost = {ref.name: (ref.dtype, ref.shape) for ref in tensors_of(model).values()}
    found = verdict(DEEPSEEK, lost)
    assert problems(found) == ["CF011"] and found.starts is True and found.verdict == "warn"
    draft: Tensors = {
        spec.tensor(module): ("BF16", spec.shape)
        for spec in model.architecture.params(model.config)
        if spec.draft
        for module in spec.modules()
    }
    assert draft and all(name.startswith("model.layers.3.") for name in draft)
    assert problems(verdict(DEEPSEEK, lost | draft)) == []


@pytest.mark.parametrize(("entries", "severity"), [(3, "error"), (5, "warning")])
def test_a_list_per_layer_of_another_length(entries: int, severity: str) -> None:
    config = {**LLAMA, "layer_types": ["full_attention"] * entries}
    (finding,) = of(verdict(config, llama()), "CF012")
    assert finding.severity == severity and finding.numbers == {"entries": entries, "layers": 4}


def test_weights_in_float32_under_a_16_bit_config() -> None:
    wide = {name: ("F32", shape) for name, (_, shape) in llama().items()}
    (finding,) = of(verdict(LLAMA, wide), "CF013")
    assert finding.severity == "info"
    assert not of(verdict(LLAMA, llama()), "CF013")


def test_rules_do_not_stop_each_other() -> None:
    config = {
        **LLAMA,
        "rope_scaling": {"rope_type": "spiral"},
        "layer_types": ["full_attention"],
        "num_attention_heads": 5,
    }
    found = verdict(config, llama(), mesh=Mesh(2))
    assert {"CF009", "CF012", "TP001", "TN003"} <= set(problems(found))
