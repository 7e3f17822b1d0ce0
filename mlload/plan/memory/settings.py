"""Engine settings that decide how much memory it takes, and their defaults.

Defaults are vLLM 0.33.0's for `vllm serve`: config/cache.py:215, engine/arg_utils.py:2940
(`get_batch_defaults`), config/vllm.py:583 (`max_concurrent_batches`).
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30
# Share of a GPU's memory that the engine takes unless told.
UTILIZATION = 0.92
# Above this nothing is promised: graphs, fragments and a driver's context lie outside the engine's own profile.
SAFE_UTILIZATION = 0.95


@dataclass(frozen=True, slots=True)
class Settings:
    """memory:         bytes of one GPU
    utilization:       share of it that the engine takes
    max_model_len:     longest request; None where the config gives no limit and none was asked
    asked_len:         the user named it
    fit_len:           the engine is told to take whatever length fits ("auto", -1)
    max_num_seqs, max_num_batched_tokens: of one step
    enforce_eager:     no CUDA graphs
    """

    memory: int
    utilization: float
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    asked_len: bool = False
    fit_len: bool = False
    enforce_eager: bool = False

    @property
    def budget(self) -> int:
        """Bytes that the engine takes of one GPU."""
        return int(self.memory * self.utilization)

    def in_flight(self, stages: int) -> int:
        """Tokens that may be scheduled and not settled: one batch a stage, and one more that is prepared meanwhile."""
        return (stages + 1) * self.max_num_batched_tokens


def batch_defaults(memory: int, gpu: str) -> tuple[int, int]:
    """(max_num_seqs, max_num_batched_tokens) by the size of the GPU; an A100 counts as a small one."""
    if memory >= 160 * GIB:
        return 1024, 16384
    if memory >= 70 * GIB and "a100" not in gpu.lower():
        return 1024, 8192
    return 256, 2048


def settings(
    memory: int,
    gpu: str,
    derived_len: int | None,
    *,
    utilization: float | None = None,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    enforce_eager: bool = False,
) -> Settings:
    """What the engine would run with.

    max_model_len: as asked; -1 for "whatever fits"; None for what the config says
    """
    seqs, tokens = batch_defaults(memory, gpu)
    length = max_model_len if max_model_len is not None and max_model_len > 0 else derived_len
    seqs = max_num_seqs or seqs
    if max_num_batched_tokens is None and length is not None:
        tokens = min(tokens, seqs * length)
    tokens = max_num_batched_tokens or tokens
    return Settings(
        memory=memory,
        utilization=UTILIZATION if utilization is None else utilization,
        max_model_len=length,
        max_num_seqs=min(seqs, tokens) if max_num_seqs is None else seqs,
        max_num_batched_tokens=tokens,
        asked_len=max_model_len is not None and max_model_len > 0,
        fit_len=max_model_len == -1,
        enforce_eager=enforce_eager,
    )
