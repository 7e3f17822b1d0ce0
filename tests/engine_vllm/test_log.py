"""Lines of real logs (a CPU, 0.32) and of the formats that vLLM 0.32 and 0.33 have for GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlload.engine.vllm.log import WORDS, Log, read_line

LOGS = Path(__file__).with_name("logs")
# worker/gpu_model_runner.py:5089, worker/gpu_worker.py:773, core/kv_cache_utils.py:1148, compilation/monitor.py:20,
# model_executor/layers/quantization/auto_awq.py:451, fused_moe/oracle/fp8.py:418, platforms/cuda.py:509 of 0.33.0.
GPU = """\
(EngineCore pid=71) INFO 11-29 10:00:00 [core.py:140] Initializing a V1 LLM engine (v0.33.0) with config: model='m'
(Worker_TP0 pid=82) INFO 11-29 10:00:09 [parallel_state.py:1906] world_size=2 rank=0 local_rank=0 backend=nccl
(Worker_TP0 pid=82) INFO 11-29 10:00:10 [gpu_model_runner.py:4979] Starting to load model m...
(Worker_TP0 pid=82) INFO 11-29 10:00:10 [cuda.py:509] Using FLASH_ATTN attention backend out of potential backends: \
['FLASH_ATTN', 'FLASHINFER'].
(Worker_TP0 pid=82) INFO 11-29 10:00:10 [auto_awq.py:451] Using MarlinLinearKernel for AutoAWQMarlinLinearMethod
(Worker_TP0 pid=82) INFO 11-29 10:00:10 [fp8.py:422] Using TRITON Fp8 MoE backend out of potential backends: ['TRITON'].
Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03,  1.0s/it]\rLoading safetensors checkpoint \
shards:  50% Completed | 2/4 [00:02<00:02,  1.0s/it]
(Worker_TP0 pid=82) INFO 11-29 10:00:21 [default_loader.py:507] Loading weights took 10.25 seconds
(Worker_TP1 pid=83) INFO 11-29 10:00:22 [default_loader.py:507] Loading weights took 11.50 seconds
(Worker_TP0 pid=82) INFO 11-29 10:00:25 [gpu_model_runner.py:5089] Model loading took 4.63 GiB memory and 14.500000 \
seconds
(Worker_TP0 pid=82) INFO 11-29 10:00:40 [monitor.py:53] torch.compile took 15.02 s in total
(Worker_TP0 pid=82) INFO 11-29 10:00:45 [gpu_worker.py:773] Available KV cache memory: 61.2 GiB
(EngineCore pid=71) INFO 11-29 10:00:46 [kv_cache_utils.py:1148] GPU KV cache size: 1,234,560 tokens, Maximum \
concurrency for 8,192 tokens per request: 150.70x
(Worker_TP0 pid=82) INFO 11-29 10:00:59 [gpu_model_runner.py:6517] Graph capturing finished in 12 secs, took 0.61 GiB
(EngineCore pid=71) INFO 11-29 10:01:00 [core.py:413] init engine (profile, create kv cache, warmup model) took 34.70 s
"""


def test_a_line_says_who_wrote_it() -> None:
    line = read_line("(Worker_TP1 pid=17) ERROR 11-29 21:55:53 [a.py:5] ValueError: no")
    assert (line.process, line.level, line.text) == ("Worker_TP1", "ERROR", "ValueError: no")
    assert read_line("  File nowhere") == ("", "", "  File nowhere")
    # Ray puts its own prefix before it, with the machine.
    assert read_line("(EngineCore pid=3, ip=10.0.0.2) hello").process == "EngineCore"


def test_a_real_log_of_a_cpu() -> None:
    log = Log()
    log.take((LOGS / "cpu_fp8.log").read_text().split("\n"))
    assert log.numbers["kv_tokens"] == 46592
    assert log.numbers["cache_gib"] == 1.0
    assert log.numbers["read_seconds"] == 0.37
    assert log.numbers["file_gib"] == 0.15
    assert log.kernels == [("ChannelWiseTorchFP8ScaledMMLinearKernel", "CompressedTensorsW8A8Fp8")]
    assert log.step == "serve"


def test_the_formats_of_a_gpu() -> None:
    log = Log()
    log.take(GPU.split("\n"))
    assert log.numbers == {
        "read_seconds": 11.5,  # of the slowest rank
        "loaded_gib": 4.63,
        "loading_seconds": 14.5,
        "compile_seconds": 15.02,
        "cache_gib": 61.2,
        "kv_tokens": 1234560,
        "concurrency": 150.7,
        "graph_gib": 0.61,
        "init_seconds": 34.7,
    }
    assert log.kernels == [
        ("FLASH_ATTN", "attention"),
        ("MarlinLinearKernel", "AutoAWQMarlinLinearMethod"),
        ("TRITON", "Fp8 MoE"),
    ]


def test_where_it_is_at_every_line() -> None:
    steps: list[str] = []
    log = Log()
    for line in GPU.split("\n"):
        log.take([line])
        if not steps or steps[-1] != log.step:
            steps.append(log.step)
    expected = ["processes", "distributed", "build", "read", "repack", "profile", "cache", "warm_up", "serve"]
    assert [step for step in steps if step != "compile"] == expected
    assert set(steps) <= set(WORDS)


def test_files_read_are_told() -> None:
    log = Log()
    log.take(GPU.split("\n")[:7])
    assert log.doing == "reading weights, 2 of 4 files"


@pytest.mark.parametrize("line", ["", "(", "()", "(a pid=) INFO", "INFO 11-29 1:2:3 [x] y", "\r\r\r", "\x00\xff"])
def test_no_line_is_too_odd(line: str) -> None:
    Log().take([line])
