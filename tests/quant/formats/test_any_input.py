"""Whatever a config and a header say, detection answers."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlload.checkpoint.finding import Finding, MlloadError
from mlload.quant.formats import assume, detect, effective_bits, roles, spec
from mlload.quant.formats.census import SUFFIXES
from mlload.quant.formats.registry import METHODS
from mlload.quant.formats.tensors import cut, shape, tensor_name
from tests.quant.checkpoints import Tensors, checkpoint

KEYS = [
    "quant_method", "bits", "w_bit", "group_size", "q_group_size", "zero_point", "version", "sym", "desc_act",
    "checkpoint_format", "format", "dynamic", "lm_head", "modules_to_not_convert", "ignored_layers", "ignore",
    "exclude_modules", "exclude", "config_groups", "kv_cache_scheme", "kv_cache_quant_algo", "weight_block_size",
    "activation_scheme", "expert_dtype", "quant_algo", "quantization", "quantized_layers", "producer", "export",
    "global_quant_config", "layer_quant_config", "layer_type_quant_config", "packing_format", "data_type",
    "extra_config", "block_name_to_quantize", "load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant", "quant_type", "weights", "targets", "num_bits", "type", "strategy", "symmetric",
    "input_activations", "block_structure", "actorder", "weight", "input_tensors", "dtype", "qscheme",
]  # fmt: skip
WORDS = [
    *METHODS, "NVFP4", "FP8", "MXFP8", "MIXED_PRECISION", "FP8_PB_WO", "gemm", "gemv", "marlin", "gptq_p",
    "gptq_v2", "pack-quantized", "nvfp4-pack-quantized", "mixed-precision", "marlin-24", "int", "float",
    "group", "block", "channel", "tensor", "tensor_group", "Linear", "re:.*", "re:(", "-:(", "+:.*", "*", "",
    "model.layers.0.up",
    "fp4", "fp8_e4m3",
    "int4", "per_group", "static", "dynamic", "128x128", "auto_round:auto_awq", "nf4", "\x00", "9" * 400,
]  # fmt: skip
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([1, 2, 3, 4, 8, 16, 32, 64, 128, -1, 0]),
    st.floats(),
    st.sampled_from(WORDS),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from([*KEYS, *WORDS]), inner, max_size=4),
    ),
    max_leaves=12,
)
BLOCKS = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=8)
DTYPES = ["I32", "U32", "I16", "I8", "U8", "I64", "F16", "BF16", "F32", "F8_E4M3", "F8_E8M0", "Q4_K", "F4", "odd"]
SIZES = st.sampled_from([0, 1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 2**63])
TENSORS = st.dictionaries(
    st.builds(
        tensor_name,
        st.sampled_from(["model.layers.0.up", "model.layers.1.mlp.experts.0.w1", "lm_head", "x"]),
        st.sampled_from([*SUFFIXES, "k_scale", "kv_scale"]),
    ),
    st.tuples(st.sampled_from(DTYPES), st.lists(SIZES, max_size=4).map(tuple)),
    max_size=8,
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(BLOCKS, TENSORS, st.sampled_from(["config.json", "text_config", "quantize_config.json", "hf_quant_config.json"]))
def test_detection_answers(block: dict[str, Any], tensors: Any, where: str) -> None:
    config = {
        "config.json": {"quantization_config": block},
        "text_config": {"text_config": {"quantization_config": block}},
    }
    side_files = {where: block} if where.endswith("_config.json") and where != "config.json" else {}
    for container in ("safetensors", "gguf"):
        quant, findings = detect(checkpoint(config.get(where, {}), tensors, side_files=side_files, container=container))
        assert all(isinstance(finding, Finding) and finding.message for finding in findings)
        if quant is None:
            continue
        for module in ("model.layers.0.up", "model.layers.1.mlp.experts.0.w1", "lm_head", "x", ""):
            scheme = quant.scheme_for(module)
            assert scheme is None or hash(scheme) is not None
            if scheme is not None:
                with contextlib.suppress(MlloadError):
                    for tensor in spec(scheme, 256, 512):
                        shape(tensor, 256, 512)
                        cut(tensor, "K", 0, 256, 512)
                    roles(scheme)
                    assert effective_bits(scheme) >= 0


@pytest.mark.parametrize("scales", [(1, 4), (2, 4), (4, 2)])
@pytest.mark.parametrize("weight", [(0, 0), (0, 512), (512, 0)])
@pytest.mark.parametrize("method", ["fp8", "compressed-tensors", "quark"])
def test_blocks_of_an_empty_matrix(method: str, weight: tuple[int, int], scales: tuple[int, int]) -> None:
    """No block is smaller than one element, so that shapes of other matrices can be asked for."""
    scale = "weight_scale_inv" if method == "fp8" else "weight_scale"
    tensors: Tensors = {
        f"x.{name}": (dtype, dims) for name, dtype, dims in (("weight", "F8_E4M3", weight), (scale, "F32", scales))
    }
    quant, _ = detect(checkpoint({"quantization_config": {"quant_method": method}}, tensors))
    for scheme in quant.schemes if quant is not None else ():
        for tensor in spec(scheme, 256, 512):
            shape(tensor, 256, 512)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=12) | st.sampled_from(["awq:", "gptq:g", "fp8:block", ":", "awq:g-1:g64"]))
def test_assumed_names_are_known_or_refused(text: str) -> None:
    with contextlib.suppress(MlloadError):
        assert assume(text).schemes
