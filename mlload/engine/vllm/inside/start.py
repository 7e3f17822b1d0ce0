"""Starts a real vLLM, asks it what it holds, and measures. Runs under vLLM's own python; nothing of mlload is there.

    python start.py ASKED.json EVENTS.jsonl

ASKED holds {"words": [...]} (what stands after `vllm serve`), "variables" that the environment gets, and what is
to be measured. Every event is one JSON line, written at once, so that whatever ends this process, what was known until
then is kept: "imported", "up", "holds", "first", "speaks", "positions", "pace", "done", or "failed".
What the engine prints goes where this process's output goes.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from typing import Any, TextIO

OUT: TextIO | None = None


def tell(event: str, **facts: Any) -> None:
    assert OUT is not None
    facts["event"], facts["at"] = event, time.time()
    OUT.write(json.dumps(facts) + "\n")
    OUT.flush()


def platform() -> dict[str, Any]:
    """What the engine runs on: "cpu" or "cuda" and what it says of itself."""
    import torch
    from vllm.platforms import current_platform

    found = {"device": current_platform.device_type, "name": None, "capability": None, "memory": None, "flags": {}}
    try:
        found["name"] = current_platform.get_device_name()
        found["memory"] = current_platform.get_device_total_memory()
        capability = current_platform.get_device_capability()
        found["capability"] = None if capability is None else [capability.major, capability.minor]
    except Exception as error:
        found["unknown"] = f"{type(error).__name__}: {error}"
    if found["device"] == "cpu":
        found["flags"] = {
            "amx": bool(getattr(torch.cpu, "_is_amx_tile_supported", bool)()),
            "zentorch": bool(getattr(current_platform, "is_zen_cpu", bool)()) and hasattr(torch.ops, "zentorch"),
        }
    return found


# Where a server's parser lives, newest first; it takes the engine's flags and refuses what no server knows.
SERVERS = ("common.cli_args", "launchers.cli_args", "openai.cli_args")


def parsed(words: list[str]) -> Any:
    """The flags as `vllm serve` reads them, as the engine's arguments. Exits where it would refuse them."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser
    parser = FlexibleArgumentParser(prog="vllm serve")
    for module in SERVERS:
        try:
            make = importlib.import_module(f"vllm.entrypoints.{module}").make_arg_parser
        except (ImportError, AttributeError):
            continue
        return AsyncEngineArgs.from_cli_args(make(parser).parse_args(words))
    raise SystemExit(f"vllm serve: error: this vLLM has its flags in none of {', '.join(SERVERS)}")


def started(asked: dict[str, Any]) -> Any:
    """The engine with a server's defaults."""
    from vllm import LLMEngine
    from vllm.usage.usage_lib import UsageContext

    arguments = parsed(asked["words"])
    arguments.disable_log_stats = True
    if asked["logprobs"] > arguments.max_logprobs >= 0:
        arguments.max_logprobs = asked["logprobs"]
    return LLMEngine.from_engine_args(arguments, usage_context=UsageContext.OPENAI_API_SERVER)


def settings(engine: Any) -> dict[str, Any]:
    """What the engine made of its flags."""
    config = engine.vllm_config
    cache, model, parallel, scheduler = (
        config.cache_config, config.model_config, config.parallel_config, config.scheduler_config,
    )  # fmt: skip
    return {
        "dtype": str(model.dtype).rpartition(".")[2],
        "quantization": None if model.quantization is None else str(model.quantization),
        "kv_cache_dtype": str(cache.cache_dtype),
        "max_model_len": model.max_model_len,
        "vocab": model.get_vocab_size(),
        "block_size": cache.block_size,
        "num_blocks": cache.num_gpu_blocks,
        "kv_cache_memory_bytes": getattr(cache, "kv_cache_memory_bytes", None),
        "gpu_memory_utilization": cache.gpu_memory_utilization,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "tp": parallel.tensor_parallel_size,
        "pp": parallel.pipeline_parallel_size,
        "ep": parallel.enable_expert_parallel,
        "backend": str(parallel.distributed_executor_backend),
        "load_format": str(getattr(config.load_config.load_format, "value", config.load_config.load_format)),
    }


def main(asked: dict[str, Any]) -> None:
    from importlib.metadata import packages_distributions, version

    began = time.time()
    import vllm

    names = packages_distributions().get("vllm", ["vllm"])
    tell("imported", version=vllm.__version__, distribution=names[0], installed=version(names[0]),
         python=sys.version.split()[0], seconds=time.time() - began, platform=platform())  # fmt: skip
    began = time.time()
    engine = started(asked)
    tell("up", seconds=time.time() - began, settings=settings(engine))

    import mlload_holds  # type: ignore[import-not-found]
    import mlload_measure  # type: ignore[import-not-found]

    tell("holds", ranks=mlload_holds.of(engine))
    mlload_measure.everything(engine, asked, tell)
    tell("done")
    # Told to end by itself: a killed one leaves its shared memory behind.
    getattr(engine.engine_core, "shutdown", bool)()


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        asked = json.load(file)
    OUT = open(sys.argv[2], "a")  # noqa: SIM115  # kept until the process ends
    os.environ.update(asked["variables"])
    code = 1
    try:
        main(asked)
        code = 0
    except SystemExit as error:
        # The engine's parser has said on its way out what it did not like.
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        tell("failed", type="SystemExit", message=str(error.code), usage=True)
        code = 2
    except BaseException as error:
        tell("failed", type=type(error).__name__, message=str(error), usage=False)
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of the engine's message queues would keep an interpreter that has nothing left to do.
    os._exit(code)
