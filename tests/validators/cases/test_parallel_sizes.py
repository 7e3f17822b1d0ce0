"""Reported faults of parallel sizes against shapes: the sizes as reported, the arithmetic beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlload.profiles import load
from tests.validators.build import AWQ, FP8_BLOCK, GPTQ, LLAMA, NVFP4, QWEN3_MOE, awq, gptq, llama, quantized
from tests.validators.cases.folders import (
    errors,
    found,
    hints,
    starts,
    tensor_parallel_sizes,
    validate,
    validate_words,
    write,
)

# 29568 = 231 * 128: one group too few for two ranks.
WIDE: dict[str, Any] = {
    **LLAMA,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 2,
    "vocab_size": 152064,
    "torch_dtype": "float16",
}
SHARED: dict[str, Any] = {
    **QWEN3_MOE,
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_experts": 64,
    "moe_intermediate_size": 1024,
    "intermediate_size": 4096,
}
# Text heads, KV heads and widths divide by 3 and 4; 192 * 256 rows pad to themselves.
SEEING: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "hidden_size": 3072,
    "intermediate_size": 9216,
    "num_hidden_layers": 2,
    "num_attention_heads": 24,
    "num_key_value_heads": 12,
    "vocab_size": 49152,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def tower(heads: int, hidden: int, width: int) -> dict[str, Any]:
    return {
        "depth": 2,
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_heads": heads,
        "in_chans": 3,
        "out_hidden_size": 3072,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "model_type": "qwen2_5_vl",
    }


def test_case_1_a_group_that_two_ranks_would_share(tmp_path: Path) -> None:
    """29568 / 2 = 14784 = 115.5 groups of 128."""
    stored = quantized(llama(WIDE), awq)
    assert stored["model.layers.0.mlp.down_proj.qweight"] == ("I32", (29568, 1024))
    assert stored["model.layers.0.mlp.down_proj.qzeros"] == ("I32", (231, 1024))
    folder = write(tmp_path, WIDE, stored, AWQ)
    assert starts(folder, 1, 2, 4, 8) == {1: True, 2: False, 4: False, 8: False}
    result = validate(folder, "--tp", "2")
    (finding,) = errors(result)
    assert finding["where"] == "model.layers.0-1.mlp.down_proj"
    assert "14784 % 128 = 64" in finding["message"]
    ways = hints(finding)
    assert "--pipeline-parallel-size 2" in ways and "29696" in ways and "groups of 64" in ways
    assert tensor_parallel_sizes(result) == {1}


def test_case_1_padded_before_it_was_quantized(tmp_path: Path) -> None:
    """29696 = 232 * 128 = 8 * 29 * 128."""
    wide = {**WIDE, "intermediate_size": 29696}
    folder = write(tmp_path, wide, quantized(llama(wide), awq), AWQ)
    assert starts(folder, 1, 2, 4, 8) == dict.fromkeys((1, 2, 4, 8), True)


def test_case_1_groups_of_64_are_served_on_two_ranks(tmp_path: Path) -> None:
    """14784 = 231 * 64; 7392 is not, 7392 % 64 = 32. Marlin pads its tiles in this version."""
    folder = write(tmp_path, WIDE, None, {**AWQ, "group_size": 64})
    assert starts(folder, 1, 2, 4) == {1: True, 2: True, 4: False}
    chosen = {each["layers"]: each["chosen"] for each in validate(folder, "--tp", "2", gpu="cc:8.0")["kernels"]}
    assert "Marlin" in chosen["RowParallelLinear[down_proj]"]


def test_case_2_the_sizes_sit_in_a_nested_config(tmp_path: Path) -> None:
    text = {**WIDE, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    nested = {
        "architectures": ["InternVLChatModel"],
        "model_type": "internvl_chat",
        "llm_config": text,
        "vision_config": {
            "model_type": "intern_vit_6b",
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_attention_heads": 16,
            "num_hidden_layers": 2,
            "image_size": 448,
            "patch_size": 14,
        },
        "downsample_ratio": 0.5,
        "auto_map": {"AutoConfig": "configuration_internvl_chat.InternVLChatConfig"},
    }
    result = validate(write(tmp_path, nested, None, AWQ), "--tp", "2", "--trust-remote-code")
    assert result["starts"] is False
    (finding,) = found(result, "TP021")
    assert "14784 % 128 = 64" in finding["message"] and "down_proj" in finding["where"]


def test_case_4_channels_that_a_narrower_config_leaves_behind(tmp_path: Path) -> None:
    """29568 - 29440 = 128 channels."""
    narrow = {**WIDE, "intermediate_size": 29440}
    result = validate(write(tmp_path, narrow, llama(WIDE)), "--tp", "2")
    assert result["verdict"] == "fail"
    said = [finding["message"] for finding in errors(result)]
    assert any("29,440" in message and "29,568" in message and "128 channels" in message for message in said)


@pytest.mark.parametrize("version", ["0.32", "0.33"])
def test_case_5_experts_narrower_than_a_group(tmp_path: Path, version: str) -> None:
    """1536 / 8 = 192 = 1.5 groups of 128: the engine halves the group, so the numbers stay right."""
    sizes = {"hidden_size": 4096, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128}
    moe = {**QWEN3_MOE, **sizes, "moe_intermediate_size": 1536, "num_experts": 16, "num_hidden_layers": 1}
    folder = write(tmp_path, moe, quantized(llama(moe), gptq), GPTQ)
    engine = f"vllm@{version}"
    eight = validate(folder, "--tp", "8", engine=engine)
    assert (eight["starts"], eight["verdict"]) == (True, "warn")
    (finding,) = found(eight, "TP026")
    assert "192 % 128 = 64" in finding["message"] and "--enable-expert-parallel" in hints(finding)
    for words in (("--tp", "4"), ("--tp", "8", "--ep")):
        assert validate(folder, *words, engine=engine)["verdict"] == "ok"


@pytest.mark.parametrize("words", [("--tp", "8"), ("--tp", "8", "--ep")])
def test_case_7_a_shared_expert_is_cut_under_expert_parallelism_too(tmp_path: Path, words: tuple[str, ...]) -> None:
    """512 / 8 = 64, half a block of 128."""
    folder = write(tmp_path, {**SHARED, "shared_expert_intermediate_size": 512}, None, FP8_BLOCK)
    result = validate(folder, *words)
    assert result["starts"] is False
    (finding,) = [each for each in errors(result) if each["question"] == "starts"]
    assert finding["where"].endswith("mlp.shared_expert.down_proj") and "64 % 128 = 64" in finding["message"]
    assert validate(folder, "--tp", "4")["starts"] is True


def test_case_8_the_sizes_that_do_divide_are_listed(tmp_path: Path) -> None:
    """1280 = 10 blocks of 128: 1 and 2 ranks get whole ones, 4 and 8 do not."""
    folder = write(tmp_path, {**SHARED, "shared_expert_intermediate_size": 1280}, None, FP8_BLOCK)
    result = validate(folder, "--tp", "4")
    assert any("shared_expert" in finding["where"] for finding in errors(result))
    assert tensor_parallel_sizes(result) == {1, 2}


def test_case_10_what_another_engine_refuses_vllm_pads(tmp_path: Path) -> None:
    """704 / 2 = 352 = 22 blocks of 16. The engine of the report wants whole 64s (352 % 64 = 32); vLLM 0.33 asks for
    K % 16 only, and pads the swizzled scales."""
    sizes = {"hidden_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256}
    folder = write(tmp_path, {**QWEN3_MOE, **sizes, "moe_intermediate_size": 704}, None, NVFP4)
    for gpu in ("cc:9.0", "cc:10.0"):
        assert starts(folder, 1, 2, gpu=gpu) == {1: True, 2: True}


def test_case_11_tiles_belong_to_an_engine_and_a_gpu(tmp_path: Path) -> None:
    """640 / 8 = 80: no tile rule of vLLM's own refuses it. 248320 % 6 = 4 is the vocabulary's. A V100 is too old for
    the method as such."""
    sizes = {"hidden_size": 6144, "num_attention_heads": 48, "num_key_value_heads": 6, "head_dim": 128}
    moe = {**QWEN3_MOE, **sizes, "moe_intermediate_size": 640, "num_experts": 512, "vocab_size": 248320}
    six = validate(write(tmp_path / "six", moe, None, NVFP4), "--tp", "6")
    assert six["starts"] is False
    assert any("248320 % 6 = 4" in finding["message"] for finding in errors(six))
    folder = write(tmp_path / "eight", {**moe, "num_key_value_heads": 8}, None, NVFP4)
    assert starts(folder, 8) == {8: True}
    old = validate(folder, "--tp", "8", gpu="cc:7.0")
    assert old["starts"] is False
    assert any("7.5" in finding["message"] for finding in errors(old))


def test_case_13_a_block_left_over_weights_that_are_bf16(tmp_path: Path) -> None:
    result = validate(write(tmp_path, LLAMA, llama(), FP8_BLOCK), "--tp", "1")
    assert result["verdict"] == "fail"
    (finding,) = found(result, "QT001")
    assert "0 tensors are quantized and 0 scales" in finding["message"] and "remove" in hints(finding)


def test_case_14_only_sizes_that_divide_heads_and_kv_heads(tmp_path: Path) -> None:
    """7 divides 28 heads, and neither is 4 a multiple of 7 nor 7 one of 4."""
    sizes = {"hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4, "head_dim": 128}
    folder = write(tmp_path, {**LLAMA, **sizes, "intermediate_size": 18944, "vocab_size": 152064})
    assert [tp for tp, good in starts(folder, *range(1, 9)).items() if good] == [1, 2, 4]
    result = validate(folder, "--tp", "8")
    assert any("28 % 8 = 4" in finding["message"] for finding in errors(result))
    assert {tp for tp in tensor_parallel_sizes(result) if tp <= 8} == {1, 2, 4}


def test_case_16_a_vocabulary_that_padding_does_not_help(tmp_path: Path) -> None:
    """151552 is a multiple of 64 already, and 151552 % 6 = 4; 8 % 6 = 2 of the KV heads is told at once."""
    sizes = {"hidden_size": 5120, "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128}
    folder = write(tmp_path, {**LLAMA, **sizes, "intermediate_size": 12288, "vocab_size": 151552})
    result = validate(folder, "--tp", "6")
    said = " / ".join(finding["message"] for finding in errors(result))
    assert "151552 % 6 = 4" in said and "8 % 6 = 2" in said
    assert {4, 8} <= tensor_parallel_sizes(result)


@pytest.mark.parametrize(
    ("heads", "hidden", "width", "tp", "rest"), [(16, 1536, 3456, 3, "16 % 3 = 1"), (25, 1600, 6400, 4, "25 % 4 = 1")]
)
def test_case_17_the_tower_does_not_divide(
    tmp_path: Path, heads: int, hidden: int, width: int, tp: int, rest: str
) -> None:
    folder = write(tmp_path, {**SEEING, "vision_config": tower(heads, hidden, width)})
    result = validate(folder, "--tp", str(tp))
    assert result["starts"] is False
    (finding,) = {each["message"]: each for each in errors(result)}.values()
    assert "vision tower" in finding["message"] and rest in finding["message"]
    assert "--mm-encoder-tp-mode data" in hints(finding)
    assert validate(folder, "--tp", str(tp), "--mm-encoder-tp-mode", "data")["starts"] is True


def test_case_19_a_class_that_holds_its_tables_on_every_stage(tmp_path: Path) -> None:
    """Four stages of one layer each. A plain class has the embedding on the first and the head on the last; one that
    builds embedding, head and norm on all of them has four alike."""
    plain = validate(write(tmp_path / "plain", LLAMA), "--tp", "1", "--pp", "4")
    first, second, third, last = (rank["weight_bytes"] for rank in plain["ranks"])
    table, norm = LLAMA["vocab_size"] * LLAMA["hidden_size"] * 2, LLAMA["hidden_size"] * 2
    assert second == third and first - second == table and last - second == table + norm
    tables = {**QWEN3_MOE, "num_hidden_layers": 4}
    everywhere = validate(write(tmp_path / "everywhere", tables), "--tp", "1", "--pp", "4")
    sizes = {rank["weight_bytes"] for rank in everywhere["ranks"]}
    assert len(sizes) == 1 and sizes.pop() > 2 * table + norm
    # The class of the report, in this version: the embedding alone.
    held = load("vllm", "0.33").architectures["Qwen3_5MoeForCausalLM"]["every_stage"]
    assert set(held) == {"embedding"}


@pytest.mark.parametrize(
    ("variable", "expected"),
    [((), [15, 15, 16, 15]), (("VLLM_PP_LAYER_PARTITION=15,15,15,16",), [15, 15, 15, 16])],
    ids=["by itself", "as asked"],
)
def test_case_20_the_split_of_61_layers_on_4_stages(
    tmp_path: Path, variable: tuple[str, ...], expected: list[int]
) -> None:
    """Cache bytes of a token are by layers alone: 2 x 2 KV heads x 64 x 2 bytes each."""
    folder = write(tmp_path, {**LLAMA, "num_hidden_layers": 61})
    line = ["--", *variable, "vllm", "serve", str(folder), "--pipeline-parallel-size", "4"]
    result = validate_words("--engine", "vllm@0.33", "--gpu", "cc:9.0", "--format", "json", *line)
    assert [rank["kv_bytes_per_token"] // (2 * 2 * 64 * 2) for rank in result["ranks"]] == expected
