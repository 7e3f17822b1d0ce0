"""How many tokens the engine's KV cache will hold: exactly where its size is named, else between two bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mlload.plan.memory import MemoryAnswer
from mlload.plan.memory.fit import cache_of
from mlload.plan.plan import Plan
from mlload.plan.stages import stage_layers
from mlload.validators.context import Request
from mlload.validators.lengths import derived_max_model_len

GIB = 2**30
# platforms/cpu.py: a CPU's attention takes blocks of 128 tokens, its latent attention without AMX blocks of 16.
CPU_BLOCK = 128
CPU_MLA_BLOCK = 16
# engine/arg_utils.py, `get_batch_defaults`: tokens of one step of a server on a CPU, for each rank.
CPU_BATCHED_TOKENS = 2048
CPU_SPACE = "VLLM_CPU_KVCACHE_SPACE"


class Tokens(NamedTuple):
    """At least and at most; equal where the size of the cache is named."""

    low: int
    high: int


def cache_tokens(
    plan: Plan,
    request: Request,
    memory: MemoryAnswer | None,
    platform: Mapping[str, Any],
    flags: Mapping[str, Any],
    variables: Mapping[str, str],
) -> tuple[Tokens | None, str]:
    """The tokens, or None and why nothing can be said."""
    cpu = platform["device"] == "cpu"
    budget = named_bytes(flags, variables, cpu)
    blocks = flags.get("num-gpu-blocks-override")
    if budget is None and blocks is None:
        if memory is not None:
            return Tokens(int(memory.tokens.low), int(memory.tokens.high)), ""
        if cpu:
            return None, f"the engine takes what it finds free; {CPU_SPACE} or --kv-cache-memory-bytes names a size"
        return None, "the GPU's memory is not known"
    tokens = in_cache(plan, request, budget, blocks, cpu and not platform.get("flags", {}).get("amx"), cpu, flags)
    return (None, "neither the config nor a flag names a length") if tokens is None else (Tokens(tokens, tokens), "")


def named_bytes(flags: Mapping[str, Any], variables: Mapping[str, str], cpu: bool) -> int | None:
    """Bytes of one rank's cache as named. On a CPU the variable wins over the flag (platforms/cpu.py)."""
    space = variables.get(CPU_SPACE, "")
    if cpu and space.strip().isdigit():
        return int(space) * GIB
    named = flags.get("kv-cache-memory-bytes")
    return int(named) if isinstance(named, int) else None


def in_cache(
    plan: Plan, request: Request, budget: int | None, blocks: Any, no_amx: bool, cpu: bool, flags: Mapping[str, Any]
) -> int | None:
    """Tokens of requests of the longest length: vLLM's own figure (v1/core/kv_cache_utils.py,
    `get_kv_cache_capacity`). None where no length is known."""
    block = flags.get("block-size")
    if cpu:
        latent = any(spec.kind == "mla" for spec in plan.model.architecture.attention(plan.model.config))
        block = CPU_MLA_BLOCK if latent and no_amx else block or CPU_BLOCK
    cache = cache_of(plan, block_size=int(block or 16))
    derived = derived_max_model_len(plan.model.checkpoint, plan.model.config)
    length = request.max_model_len or (derived.length if derived else None)
    stages = [
        cache.block_bytes(None if plan.mesh.pp == 1 else stage_layers(plan.model.config.layers, plan.mesh, stage))
        for stage in range(plan.mesh.pp)
    ]
    keeping = [nbytes for nbytes in stages if nbytes]
    if not length or length < 0 or not keeping:
        return None
    count = int(blocks) if isinstance(blocks, int) else min((budget or 0) // nbytes for nbytes in keeping)
    ranks = plan.mesh.tp * plan.mesh.pp
    batched = request.max_num_batched_tokens or CPU_BATCHED_TOKENS * ranks
    whole = cache.request_blocks(length, (plan.mesh.pp + 1) * batched)
    return int(count / whole * length)
