"""What a rule looks at: the model, the plan for one mesh, the engine's profile, and what was asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlload.checkpoint.checkpoint import Checkpoint
    from mlload.checkpoint.config import ConfigView
    from mlload.plan.memory import MemoryAnswer
    from mlload.plan.memory.startup import Storage
    from mlload.plan.model import Model
    from mlload.plan.plan import Plan
    from mlload.validators.speculative_config import Speculative


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for, in the engine's own words; None is "the engine's default".

    capability:  compute capability as "9.0", or None when no GPU was named
    gpu:         name of the GPU as in the catalogue, or None
    memory_gib:  memory of one GPU in GiB; None (also for `cc:9.0`) means nothing is judged about memory
    max_model_len: tokens; -1 for "as long as fits"
    long_allowed: VLLM_ALLOW_LONG_MAX_MODEL_LEN is set: more tokens than the config allows are served all the same
    tower_mode:  --mm-encoder-tp-mode: "weights" or "data"
    storage:     where the weights are read from, for a prediction of the start-up time
    nodes:       machines that share all ranks
    lora:        adapters to serve with the model, opened
    speculative: speculative decoding as asked for, its draft opened
    options:     engine flags given beyond those below, by their long names without dashes
    """

    capability: str | None = None
    gpu: str | None = None
    memory_gib: float | None = None
    dtype: str = "auto"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    long_allowed: bool = False
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    load_format: str = "auto"
    trust_remote_code: bool = False
    tower_mode: str | None = None
    enforce_eager: bool = False
    storage: Storage | None = None
    nodes: int = 1
    lora: tuple[Checkpoint, ...] = ()
    speculative: Speculative | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Context:
    """One question: this model, on this mesh, on this engine, as asked.

    memory: what fits, None where no memory size is known or it could not be judged
    """

    model: Model
    plan: Plan
    request: Request
    memory: MemoryAnswer | None = None

    @property
    def checkpoint(self) -> Checkpoint:
        return self.model.checkpoint

    @property
    def config(self) -> ConfigView:
        return self.model.config
