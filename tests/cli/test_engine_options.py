"""The engine's settings as options: spellings, limits, and that each of them arrives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlload.checkpoint.finding import MlloadError
from mlload.cli.engine_options import NAMES, OPTIONS, request_from, tokens
from mlload.plan.memory.startup import Storage
from tests.cli.conftest import Run
from tests.cli.test_validate import validated


def test_every_option_has_its_name() -> None:
    from click import Command

    def nothing(**asked: Any) -> None:
        raise AssertionError

    command: Any = nothing
    for option in OPTIONS:
        command = option(command)
    params = Command("x", params=command.__click_params__).params
    assert {param.name for param in params} == set(NAMES)


@pytest.mark.parametrize(
    ("text", "expected"), [("8192", 8192), (8192, 8192), ("32k", 32_000), ("32K", 32_768), ("25.6k", 25_600)]
)
def test_counts_as_the_engine_writes_them(text: str | int, expected: int) -> None:
    assert tokens(text, "--max-model-len") == expected


@pytest.mark.parametrize("text", ["auto", "-1", -1])
def test_as_long_as_fits(text: str | int) -> None:
    assert tokens(text, "--max-model-len", fit=True) == -1
    with pytest.raises(MlloadError, match="--max-num-seqs"):
        tokens(text, "--max-num-seqs")


@pytest.mark.parametrize("text", ["0", "-5", "many", "1.5", "", "9" * 40])
def test_other_counts_are_a_sentence(text: str) -> None:
    with pytest.raises(MlloadError, match="--max-model-len takes a count"):
        tokens(text, "--max-model-len", fit=True)


@pytest.mark.parametrize("text", ["0", "1.1", "nan", "most", "-0.5"])
def test_shares_lie_above_0_and_up_to_1(text: str) -> None:
    with pytest.raises(MlloadError, match="--gpu-memory-utilization"):
        request_from({"gpu_memory_utilization": text})


def test_nothing_asked_is_the_engine_s_default() -> None:
    found = request_from({})
    assert (found.dtype, found.kv_cache_dtype, found.load_format) == ("auto", "auto", "auto")
    assert (found.max_model_len, found.gpu_memory_utilization, found.storage) == (None, None, None)


def test_everything_arrives() -> None:
    found = request_from({
        "dtype": "half", "quantization": "gptq", "kv_cache_dtype": "fp8", "max_model_len": "4k", "max_num_seqs": "16",
        "max_num_batched_tokens": 2048, "gpu_memory_utilization": "0.8", "enforce_eager": True, "load_format": "pt",
        "mm_encoder_tp_mode": "data", "storage": "nfs:1GB/s", "trust_remote_code": True,
    })  # fmt: skip
    assert (found.dtype, found.quantization, found.kv_cache_dtype, found.max_model_len) == ("half", "gptq", "fp8", 4000)
    assert (found.max_num_seqs, found.max_num_batched_tokens, found.gpu_memory_utilization) == (16, 2048, 0.8)
    assert (found.enforce_eager, found.load_format, found.tower_mode) == (True, "pt", "data")
    assert (found.storage, found.trust_remote_code) == (Storage("nfs", 1e9), True)


def test_the_serve_line_repeats_what_was_asked(mlload: Run, llama: Path) -> None:
    (result,) = validated(
        mlload, llama, "--tp", "2", "--gpu", "h100", "--dtype", "half", "--max-model-len", "128", "--max-num-seqs", "8",
        "--gpu-memory-utilization", "0.8", "--kv-cache-dtype", "fp8", "--dp", "2", code=0,
    )["results"]  # fmt: skip
    assert result["serve"].split(" ", 3)[3] == (
        "--tensor-parallel-size 2 --data-parallel-size 2 --dtype half --kv-cache-dtype fp8 --max-model-len 128 "
        "--max-num-seqs 8 --gpu-memory-utilization 0.8"
    )
    assert (result["dp"], result["memory"]["request_tokens"]) == (2, 128)


def test_a_dtype_that_the_gpu_has_not(mlload: Run, llama: Path) -> None:
    (result,) = validated(mlload, llama, "--gpu", "t4", "--dtype", "bfloat16", code=1)["results"]
    assert result["starts"] is False and "EN015" in {finding["code"] for finding in result["findings"]}


def test_unusable_options_are_wrong_usage(mlload: Run, llama: Path) -> None:
    for words in (("--storage", "fast"), ("--max-model-len", "long"), ("--gpu-memory-utilization", "2")):
        found = mlload("validate", llama, *words)
        assert found.returncode == 2 and "Traceback" not in found.stderr
