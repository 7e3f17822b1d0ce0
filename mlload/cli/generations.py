"""One row a GPU generation, for when no GPU was named."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from mlload.plan.plan import Plan, on_gpu
from mlload.profiles.gpus import Gpu, generations
from mlload.validators.context import Request
from mlload.validators.verdict import Verdict, Word, combine, of_gpu, once


class Generation(NamedTuple):
    """gpu: one of that generation; starts, verdict: as for a whole answer, without memory; codes: why not"""

    gpu: Gpu
    starts: bool | None
    verdict: Word
    codes: tuple[str, ...]


def by_generation(plan: Plan, request: Request, verdict: Verdict) -> tuple[Generation, ...]:
    """What each generation would say: what was found anyway, and what depends on the GPU judged anew."""
    here = {(finding.code, finding.where) for finding in of_gpu(plan, request)}
    everywhere = [finding for finding in verdict.findings if (finding.code, finding.where) not in here]
    found = []
    for gpu in generations():
        if gpu.capability == plan.capability:
            answer = verdict
        else:
            assert gpu.capability is not None
            there = on_gpu(plan, gpu.capability, dtype=request.dtype, kv_dtype=request.kv_cache_dtype)
            asked = replace(request, capability=".".join(map(str, gpu.capability)), gpu=gpu.key)
            answer = combine(once((*everywhere, *of_gpu(there, asked))), verdict.unknowns)
        worst = answer.findings[0].severity if answer.findings else "info"
        codes = tuple(dict.fromkeys(f.code for f in answer.findings if f.severity == worst != "info"))
        found.append(Generation(gpu, answer.starts, answer.verdict, codes))
    return tuple(found)
