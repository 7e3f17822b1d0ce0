"""Whether weights, cache and everything else fit a GPU, rank by rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from mlload.plan.dtype import torch_dtype
from mlload.plan.memory.cache_groups import CachePlan, plan_cache
from mlload.plan.memory.cache_layers import cache_layers
from mlload.plan.memory.overheads import Span, activations, buffers, graphs, outside_torch
from mlload.plan.memory.settings import SAFE_UTILIZATION, Settings
from mlload.plan.plan import Plan
from mlload.plan.stages import stage_layers

Fits = Literal["yes", "tight", "no"]


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes of one rank.

    beside:      activations, graphs and what torch does not see: at least and at most
    cache:       left for the cache: at least and at most; negative where the rest is too large already
    block_bytes: of one block of its cache; 0 where it keeps none
    """

    rank: int
    weight_bytes: int
    buffer_bytes: int
    beside: Span
    cache: Span
    block_bytes: int

    def blocks(self) -> tuple[int, int]:
        """Blocks of the cache: at least and at most."""
        return tuple(max(size, 0) // self.block_bytes for size in self.cache)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    """fits:       "yes" whatever the ranges turn out to be; "tight" if they turn out small; "no" even then
    ranks:         the fullest rank of each stage
    peak:          the one that decides
    cache:         how the cache is divided; no groups for a model without one
    request:       tokens of the longest request, as asked or as the config says
    tokens:        that the cache holds in requests of that length: at least and at most
    concurrency:   such requests at once: at least and at most
    max_model_len: the longest request that surely fits (or that may, where none surely does), no longer than the
                 config allows; None without a cache, or where neither the config nor the user names a length
    """

    settings: Settings
    fits: Fits
    ranks: tuple[RankMemory, ...]
    peak: RankMemory
    cache: CachePlan
    request: int
    tokens: Span
    concurrency: tuple[float, float]
    max_model_len: int | None


def cache_of(plan: Plan, *, block_size: int = 16) -> CachePlan:
    """How the engine divides the cache of a plan's model."""
    config = plan.model.config
    classes = cache_layers(
        plan.model.architecture.attention(config),
        plan.mesh.tp,
        dtype=plan.dtype,
        kv_dtype=plan.kv_dtype,
        ssm_dtype=torch_dtype(config.get("mamba_ssm_cache_dtype") or config.get("mamba_ssm_dtype")),
    )
    return plan_cache(classes, block_size=block_size)


def judge_memory(plan: Plan, settings: Settings, limit: int | None) -> MemoryAnswer:
    """limit: the longest context that the config allows, None for none"""
    cache = cache_of(plan)
    weights = plan.weights()
    kept = buffers(plan)
    fixed = activations(plan, settings) + outside_torch(plan)
    ranks = []
    for stage in range(plan.mesh.pp):
        # The first rank of a stage is its fullest: spare experts go to the first ranks.
        rank = stage * plan.mesh.tp
        mine = stage_layers(plan.model.config.layers, plan.mesh, stage)
        nbytes = sum(weights.of(rank)[1].values())
        beside = fixed + graphs(plan, settings, len(mine))
        left = settings.budget - nbytes - kept
        ranks.append(
            RankMemory(
                rank=rank,
                weight_bytes=nbytes,
                buffer_bytes=kept,
                beside=beside,
                cache=Span(left - beside.high, left - beside.low),
                block_bytes=cache.block_bytes(None if plan.mesh.pp == 1 else mine),
            )
        )
    return _answer(settings, tuple(ranks), cache, settings.in_flight(plan.mesh.pp), limit)


def _answer(
    settings: Settings, ranks: tuple[RankMemory, ...], cache: CachePlan, in_flight: int, limit: int | None
) -> MemoryAnswer:
    keeping = [rank for rank in ranks if rank.block_bytes]
    request = settings.max_model_len or limit or 1
    if not keeping:
        peak = min(ranks, key=lambda rank: rank.cache.low)
        sure, maybe = peak.cache.low > 0, peak.cache.high > 0
        fits: Fits = "yes" if sure else "tight" if maybe else "no"
        nothing = Span(0, 0)
        return MemoryAnswer(settings, _capped(fits, settings), ranks, peak, cache, request, nothing, (0.0, 0.0), None)
    peak = min(keeping, key=lambda rank: rank.blocks()[0] if rank.blocks()[0] else rank.cache.low)
    low, high = (min(column) for column in zip(*(rank.blocks() for rank in keeping), strict=True))
    need = cache.request_blocks(1 if settings.fit_len else request, in_flight)
    # One block is the engine's own and holds nothing.
    fits = "yes" if need <= low - 1 else "tight" if need <= high - 1 else "no"
    bound = max(limit or 0, settings.max_model_len or 0)
    longest = None
    if bound:
        longest = cache.longest(low - 1, in_flight, bound) or cache.longest(high - 1, in_flight, bound)
    served = min(request, longest) if settings.fit_len and longest else request
    whole = cache.request_blocks(served, in_flight)
    concurrency = (low / whole, high / whole)
    tokens = Span(*(int(share * served) for share in concurrency))
    fits = _capped(fits, settings)
    return MemoryAnswer(settings, fits, ranks, peak, cache, served, tokens, concurrency, longest)


def _capped(fits: Fits, settings: Settings) -> Fits:
    """Above `SAFE_UTILIZATION` nothing is promised."""
    return "tight" if fits == "yes" and settings.utilization > SAFE_UTILIZATION else fits


def worst(answers: Iterable[Fits]) -> Fits | None:
    """Of several sizes, None of none."""
    found = set(answers)
    for word in ("no", "tight", "yes"):
        if word in found:
            return word
    return None
