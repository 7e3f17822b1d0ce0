"""The cause out of real logs, in which three processes tell of one failure, and out of what GPUs and parsers say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlload.engine.vllm.errors import reduce

LOGS = Path(__file__).with_name("logs")
POINTER = {
    "type": "RuntimeError",
    "message": "Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}",
    "usage": False,
}


def told(name: str, failed: dict[str, Any] | None = POINTER) -> str:
    fault = reduce((LOGS / f"{name}.log").read_text().splitlines(), failed)
    assert fault is not None
    return fault.sentence


@pytest.mark.parametrize("failed", [POINTER, None], ids=["with the last word", "killed before it"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "missing_weight",
            "ValueError: Following weights were not initialized from checkpoint: "
            "{'model.layers.5.input_layernorm.weight'}",
        ),
        ("no_kernel", "ValueError: Failed to find a kernel that can implement the ScaledMM linear layer. Reasons: "),
        ("unexpected_tensor", "ValueError: There is no module or parameter named 'layers.5.mlp.odd' in LlamaModel"),
        ("mixed_schemes", "ValueError: Found different quantization schemes for the shards of model.layers.5.mlp"),
    ],
)
def test_a_worker_knows_the_cause(name: str, said: str, failed: dict[str, Any] | None) -> None:
    assert told(name, failed).startswith(said)


def test_reasons_on_further_lines_belong_to_it() -> None:
    assert "CPUFp8BlockScaledMMKernel requires AMX tile support" in told("no_kernel")
    assert "EngineCore" not in told("no_kernel")


def test_a_config_that_is_refused_says_its_sentence_alone() -> None:
    message = (
        "1 validation error for VllmConfig\n"
        "  Value error, Total number of attention heads (9) must be divisible by tensor parallel size (2). "
        "[type=value_error, input_value=ArgsKwargs(), input_type=ArgsKwargs]\n"
        "    For further information visit https://errors.pydantic.dev/2.12/v/value_error"
    )
    fault = reduce([], {"type": "ValidationError", "message": message, "usage": False})
    assert fault is not None
    assert fault.message == "Total number of attention heads (9) must be divisible by tensor parallel size (2)."


def lines(process: str, text: str) -> list[str]:
    return [f"({process} pid=9) ERROR 11-29 10:00:00 [x.py:1] {line}" for line in text.splitlines()]


RAISED_FROM = """\
Traceback (most recent call last):
  File "a.py", line 1, in read
safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "b.py", line 2, in load
RuntimeError: could not load the shard"""
ON_THE_WAY = """\
Traceback (most recent call last):
  File "a.py", line 1, in find
KeyError: 'llama'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 2, in load
ValueError: no such architecture"""
MEMORY = """\
Traceback (most recent call last):
  File "a.py", line 1, in empty
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB"""


def test_of_what_was_raised_from_another_the_first_counts() -> None:
    fault = reduce(lines("Worker_TP0", RAISED_FROM), POINTER)
    assert fault is not None
    assert fault.sentence.startswith("SafetensorError: Error while deserializing header: incomplete metadata")


def test_what_happened_on_the_way_is_no_cause() -> None:
    fault = reduce(lines("Worker_TP0", ON_THE_WAY), POINTER)
    assert fault is not None and fault.sentence == "ValueError: no such architecture"


def test_two_ranks_that_write_at_once_are_told_apart() -> None:
    mixed = [
        line
        for pair in zip(lines("Worker_TP0", MEMORY), lines("Worker_TP1", MEMORY.replace("GPU 0", "GPU 1")), strict=True)
        for line in pair
    ]
    fault = reduce(mixed, POINTER)
    assert fault is not None and fault.process == "Worker_TP0"
    assert fault.sentence.startswith("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0")


def test_a_process_that_was_killed() -> None:
    # executor/multiproc_executor.py:381
    line = (
        "(EngineCore pid=9) ERROR 11-29 10:00:00 [x.py:1] Worker proc VllmWorker-1 died unexpectedly (exit code: -9), "
    )
    fault = reduce([line, "shutting down executor."], POINTER)
    assert fault is not None
    assert fault.sentence.startswith("Worker proc VllmWorker-1 ended by signal 9 without a word, which is what the")


def test_flags_that_the_engine_refuses() -> None:
    said = [
        "usage: vllm serve [-h] ...",
        "vllm serve: error: argument --tensor-parallel-size/-tp: invalid int value: 'x'",
    ]
    fault = reduce(said, {"type": "SystemExit", "message": "2", "usage": True})
    assert fault is not None and fault.sentence == "argument --tensor-parallel-size/-tp: invalid int value: 'x'"


def test_nothing_said_is_nothing_known() -> None:
    assert reduce(["hello"], None) is None


def test_a_traceback_that_was_cut_off() -> None:
    assert reduce(["Traceback (most recent call last):", '  File "a.py", line 1'], None) is None
