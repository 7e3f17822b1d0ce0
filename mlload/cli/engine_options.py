"""The engine's settings that change its answer, as options; whoever reads them elsewhere makes the same Request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from mlload.checkpoint.finding import MlloadError

if TYPE_CHECKING:
    from mlload.validators.context import Request

DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")

OPTIONS = (
    click.option(
        "--dtype", type=click.Choice(DTYPES), default="auto", show_default=True, help="Of weights and activations."
    ),
    click.option("--quantization", "-q", metavar="METHOD", help="The engine's method, where files do not declare it."),
    click.option("--kv-cache-dtype", metavar="DTYPE", default="auto", show_default=True, help="Of keys and values."),
    click.option("--max-model-len", metavar="TOKENS", help="Longest request: 8192, 32k, or auto for what fits."),
    click.option("--max-num-seqs", metavar="N", help="Sequences of one step."),
    click.option("--max-num-batched-tokens", metavar="N", help="Tokens of one step."),
    click.option(
        "--gpu-memory-utilization", metavar="SHARE", help="Of a GPU's memory that the engine takes; 0.92 unless given."
    ),
    click.option("--enforce-eager", is_flag=True, help="No CUDA graphs."),
    click.option("--load-format", metavar="FORMAT", default="auto", show_default=True, help="The engine's loader."),
    click.option(
        "--mm-encoder-tp-mode",
        type=click.Choice(["weights", "data"]),
        help="Vision and audio towers cut like the text model, or whole on every rank.",
    ),
    click.option(
        "--storage", metavar="KIND:SPEED", help="Where the weights are read from, such as nfs:1.2GB/s: start-up time."
    ),
    click.option("--nodes", "-n", "--nnodes", metavar="N", help="Machines that share all ranks; 1 unless given."),
    click.option("--trust-remote-code", is_flag=True, help="Judge as if the engine may run the checkpoint's own code."),
)
NAMES = (
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "enforce_eager",
    "load_format",
    "mm_encoder_tp_mode",
    "storage",
    "nodes",
    "trust_remote_code",
)


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds all of them; the command gets them as keywords called as in `NAMES`."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def request_from(values: Mapping[str, Any]) -> Request:
    """A request out of values by the names in `NAMES`, as text or already of their type; absent ones are defaults."""
    from mlload.plan.memory.startup import parse_storage
    from mlload.validators.context import Request

    storage = values.get("storage")
    return Request(
        dtype=values.get("dtype") or "auto",
        quantization=values.get("quantization"),
        kv_cache_dtype=values.get("kv_cache_dtype") or "auto",
        max_model_len=tokens(values.get("max_model_len"), "--max-model-len", fit=True),
        max_num_seqs=tokens(values.get("max_num_seqs"), "--max-num-seqs"),
        max_num_batched_tokens=tokens(values.get("max_num_batched_tokens"), "--max-num-batched-tokens"),
        gpu_memory_utilization=share(values.get("gpu_memory_utilization"), "--gpu-memory-utilization"),
        load_format=values.get("load_format") or "auto",
        trust_remote_code=bool(values.get("trust_remote_code")),
        tower_mode=values.get("mm_encoder_tp_mode"),
        enforce_eager=bool(values.get("enforce_eager")),
        nodes=machines(values.get("nodes")),
        storage=parse_storage(storage) if isinstance(storage, str) else None,
    )


def machines(value: str | int | None) -> int:
    """ "2"; 1 where nothing is said."""
    text = "1" if value is None else str(value).strip()
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65536:
        raise MlloadError(f"--nodes takes a number of machines such as 2, not {value!r}")
    return int(text)


def tokens(value: str | int | None, option: str, *, fit: bool = False) -> int | None:
    """8192, "8192", "32k" (32,000), "32K" (32,768), "25.6k"; with `fit` also "auto" and -1, which become -1."""
    if value is None:
        return None
    if fit and str(value).strip().lower() in ("auto", "-1"):
        return -1
    from mlload.profiles.serve_words import human_int

    try:
        number = human_int(str(value).strip())
    except ValueError:
        number = 0
    if not 0 < number < 2**40:
        also = " or auto" if fit else ""
        raise MlloadError(f"{option} takes a count such as 8192 or 32k{also}, not {value!r}")
    return number


def share(value: str | float | None, option: str) -> float | None:
    """A number above 0 and up to 1."""
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1:
        raise MlloadError(f"{option} takes a share above 0 and up to 1 such as 0.9, not {value!r}")
    return number
