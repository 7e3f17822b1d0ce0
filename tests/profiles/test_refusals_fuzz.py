"""A config that somebody's script mangled is findings, never a traceback."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mlload.profiles import load
from mlload.profiles.quantization import resolve_quantization
from mlload.profiles.refusals import config_refusals, dtype_refusals, quant_refusals

VLLM = load("vllm", "0.33.0")
METHODS = ["gptq", "awq", "fp8", "compressed-tensors", "modelopt", "quark", "auto-round", "mxfp4", "bitsandbytes", ""]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-4, 200) | st.text(max_size=6) | st.sampled_from(METHODS) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ["bits", "group_size", "desc_act", "sym", "dynamic", "zero_point", "activation_scheme", "weight_block_size",
          "config_groups", "kv_cache_scheme", "sparsity_config", "export", "layer_quant_config", "quantization",
          "quant_algo", "ignore", "packing_format", "data_type", "backend", "producer"]  # fmt: skip
QUANT = st.fixed_dictionaries(
    {"quant_method": st.sampled_from(METHODS) | VALUES}, optional=dict.fromkeys(FIELDS, VALUES)
)
CONFIG = st.fixed_dictionaries(
    {},
    optional={
        "model_type": VALUES | st.just("llama"),
        "architectures": VALUES,
        "auto_map": VALUES,
        "quantization_config": QUANT | VALUES,
        "text_config": VALUES,
    },
)


@settings(max_examples=400, deadline=None)
@given(CONFIG, st.dictionaries(st.sampled_from(["hf_quant_config.json", "quantize_config.json"]), QUANT | VALUES))
def test_any_config_gets_an_answer(config: dict[str, Any], files: dict[str, Any]) -> None:
    found = resolve_quantization(config, files, VLLM)
    asked = resolve_quantization(config, files, VLLM, asked="gptq")
    findings = (
        *config_refusals(config, VLLM),
        *dtype_refusals(str(config.get("model_type")), "half", (7, 5), VLLM),
        *found.findings,
        *quant_refusals(found, "BF16", (9, 0), VLLM),
        *quant_refusals(asked, "F32", None, VLLM),
    )
    assert all(finding.message and "\n" not in finding.message.strip() for finding in findings)
