"""Bytes of quantized layers, against arithmetic done by hand."""

from __future__ import annotations

import pytest

from mlload.profiles import load
from mlload.profiles.allocation import allocate, attention_bytes
from mlload.profiles.allocation.experts import halved_group
from mlload.profiles.layers import EngineLayer
from mlload.quant.spec import Scheme

VLLM = load("vllm", "0.33.0")
# qkv_proj of 32 query and 8 key-value heads of 128 on one of 2 ranks; hidden size 4096.
QKV = EngineLayer("QKVParallelLinear", "qkv_proj", (2048, 512, 512), 4096, (4096, 1024, 1024), 4096, tp=2)
# down_proj of intermediate size 14336, cut along K.
DOWN = EngineLayer("RowParallelLinear", "down_proj", (4096,), 7168, (4096,), 14336, tp=2)
# 8 of 8 experts, gate and up of 768, hidden size 2048.
EXPERTS = EngineLayer("RoutedExperts", "experts", (768, 768), 2048, (768, 768), 2048, experts=8, experts_all=8)


def sizes(
    layer: EngineLayer, scheme: Scheme, quant: str, dtype: str = "BF16", cc: tuple[int, int] = (9, 0)
) -> dict[str, int]:
    found = allocate(layer, scheme, quant, dtype, cc, VLLM)
    assert found is not None
    return found


def test_awq_packs_eight_values_a_word_and_keeps_zero_points() -> None:
    awq = Scheme("awq", "gemm", 4, "int", "group", 128, symmetric=False)
    n, k = 3072, 4096
    assert sizes(QKV, awq, "auto_awq") == {"I32": (k * n // 8 + k // 128 * n // 8) * 4, "BF16": k // 128 * n * 2}


def test_gptq_with_one_group_repeats_its_scales_on_row_parallel_ranks() -> None:
    gptq = Scheme("gptq", "gptq", 4, "int", "group", -1)
    n, k = 4096, 7168
    assert sizes(DOWN, gptq, "auto_gptq", "F16") == {"I32": (k // 8 * n + n // 8) * 4, "F16": n * 2}


def test_packed_words_hold_fractions_of_values_and_a_shape() -> None:
    three = Scheme("compressed_tensors", "pack-quantized", 3, "int", "group", 128)
    n, k = 4096, 7168
    assert sizes(DOWN, three, "compressed-tensors") == {
        "I32": n * (k * 3 // 32) * 4,
        "BF16": n * (k // 128) * 2,
        "I64": 16,
    }


def test_fp8_has_one_scale_a_part_and_static_ones_for_its_input() -> None:
    static = Scheme("fp8", "", 8, "float", "tensor", activation="static", activation_bits=8)
    assert sizes(QKV, static, "fp8") == {"F8_E4M3": 3072 * 4096, "F32": (3 + 3) * 4}


def test_block_scales_round_up() -> None:
    block = Scheme("fp8", "", 8, "float", "block", block=(128, 128), activation="dynamic", activation_bits=8)
    odd = EngineLayer("ReplicatedLinear", "kv_a", (2048, 576), 7168)
    assert sizes(odd, block, "fp8") == {"F8_E4M3": 2624 * 7168, "F32": 21 * 56 * 4}


def test_nvfp4_has_a_float8_scale_for_each_sixteen_values() -> None:
    fp4 = Scheme("modelopt", "", 4, "float", "tensor_group", 16, activation="dynamic")
    assert sizes(QKV, fp4, "modelopt_fp4") == {
        "U8": 3072 * 2048,
        "F8_E4M3": 3072 * 256,
        "F32": (3 + 3) * 4,
    }


def test_a_bias_is_counted_in_the_models_dtype() -> None:
    from dataclasses import replace

    int8 = Scheme("compressed_tensors", "int-quantized", 8, "int", "channel", activation="dynamic", activation_bits=8)
    assert sizes(replace(QKV, bias=3072), int8, "compressed-tensors") == {
        "I8": 3072 * 4096,
        "F32": 3072 * 4,
        "BF16": 3072 * 2,
    }


def test_gptq_experts_have_biases_even_where_the_model_has_none() -> None:
    gptq = Scheme("gptq", "gptq", 4, "int", "group", 128)
    words = 2048 // 8 * 1536 + 768 // 8 * 2048
    zeros = 16 * (1536 // 8) + 6 * (2048 // 8)
    assert sizes(EXPERTS, gptq, "auto_gptq", "F16") == {
        "I32": 8 * (words + zeros) * 4,
        "F16": 8 * (16 * 1536 + 6 * 2048 + 1536 + 2048) * 2,
    }


def test_groups_of_experts_are_halved_until_they_divide() -> None:
    assert halved_group(128, 2048, 96) == 32
    assert halved_group(128, 2048, 48) == 16
    assert halved_group(128, 2048, 768) == 128


def test_fp8_experts_get_a_finer_grid_where_whole_blocks_cannot_be_cut() -> None:
    block = Scheme("fp8", "", 8, "float", "block", block=(128, 128), activation="dynamic", activation_bits=8)
    cut = EngineLayer("RoutedExperts", "experts", (96, 96), 2048, (768, 768), 2048, tp=8, experts=4, experts_all=4)
    grid13, grid2 = 2 * (96 // 32) * (2048 // 32), (2048 // 32) * (96 // 32)
    assert sizes(cut, block, "fp8")["F32"] == 4 * (grid13 + grid2) * 4
    assert sizes(EXPERTS, block, "fp8")["F32"] == 8 * (2 * 6 * 16 + 16 * 6) * 4


@pytest.mark.parametrize(("cc", "hidden", "size"), [((9, 0), 2880, 384), ((8, 0), 3072, 384), ((10, 0), 2880, 384)])
def test_mxfp4_experts_are_rounded_up_by_their_backend(cc: tuple[int, int], hidden: int, size: int) -> None:
    """2880 / 8 = 360: Triton rounds the intermediate size to 64, Marlin to 128 and the hidden size to 256."""
    layer = EngineLayer("GptOssRoutedExperts", "experts", (360, 360), 2880, (2880, 2880), 2880, tp=8, experts=2,
                        experts_all=2, activation="swigluoai")  # fmt: skip
    mx = Scheme("mxfp4", "", 4, "mx", "group", 32)
    values = 2 * (2 * size * hidden // 2 + hidden * size // 2)
    scales = 2 * (2 * size * hidden // 32 + hidden * size // 32)
    assert sizes(layer, mx, "gpt_oss_mxfp4", cc=cc) == {"U8": values + scales}


def test_an_unknown_method_has_no_answer() -> None:
    assert allocate(QKV, Scheme("torchao", "", 8), "torchao", "BF16", (9, 0), VLLM) is None


def test_attention_layers_hold_scales_as_their_method_creates_them() -> None:
    assert attention_bytes("compressed-tensors", "BF16") == {"F32": 12, "BF16": 6}
    assert attention_bytes("fp8", "F16") == {"F16": 8}
    assert attention_bytes("fp8", "F16", mla=True) == {}
    assert attention_bytes("modelopt_fp4", "BF16", mla=True) == {"BF16": 8}
    assert attention_bytes("auto_awq", "F16") == {}
    assert attention_bytes(None, "F16") == {}


def test_mxfp8_experts_have_a_byte_of_scale_for_each_thirty_two_values() -> None:
    mx = Scheme("modelopt", "MXFP8", 8, "mx", "group", 32, activation="dynamic", activation_bits=8)
    values = 8 * (1536 * 2048 + 2048 * 768)
    assert sizes(EXPERTS, mx, "modelopt_mxfp8") == {"F8_E4M3": values, "U8": values // 32}


def test_mxfp4_experts_of_compressed_tensors_are_not_rounded_up() -> None:
    mx = Scheme("compressed_tensors", "mxfp4-pack-quantized", 4, "mx", "group", 32, activation="dynamic")
    odd = EngineLayer("RoutedExperts", "experts", (96, 96), 2080, experts=2, experts_all=2)
    values = 2 * (192 * 2080 + 2080 * 96)
    assert sizes(odd, mx, "compressed-tensors") == {"U8": values // 2 + values // 32}


def test_quark_int8_experts_keep_zero_points() -> None:
    int8 = Scheme("quark", "int8", 8, "int", "channel", activation="dynamic", activation_bits=8)
    channels = 8 * (1536 + 2048)
    assert sizes(EXPERTS, int8, "quark") == {
        "I8": 8 * (1536 * 2048 + 2048 * 768) + channels + 8 * 3,
        "F32": channels * 4,
    }
