"""What `validate` says of the same question, written down before the engine has answered it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mlload import profiles
from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import Finding, MlloadError
from mlload.engine.vllm.tokens import Tokens, cache_tokens
from mlload.kernels.choice import Choice, choose
from mlload.plan.mesh import Mesh
from mlload.plan.model import read_model
from mlload.plan.plan import Plan, make_plan
from mlload.profiles.gpus import Gpu
from mlload.profiles.profile import Profile
from mlload.validators.context import Request
from mlload.validators.verdict import Verdict, combine, judge, once


@dataclass(frozen=True)
class Question:
    """mesh, request: as asked; flags: of the engine, by their long names; variables: of its environment
    platform: what the engine says that it runs on (`inside/start.py`); findings: about the flags themselves"""

    source: str
    revision: str | None
    version: str
    mesh: Mesh
    request: Request
    platform: Mapping[str, Any]
    flags: Mapping[str, Any]
    variables: Mapping[str, str]
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Prediction:
    """engine:   the profile's version, "" where there is none
    missing: why nothing is predicted, "" where something is
    ranks:   {rank, disk_bytes, weight_bytes, kv_bytes_per_token}
    kernels: one choice a kind of layer
    tokens:  of the KV cache; None where nothing can be said, and `tokens_missing` says why
    """

    engine: str
    missing: str = ""
    verdict: Verdict | None = None
    ranks: tuple[dict[str, int], ...] = ()
    kernels: tuple[Choice, ...] = ()
    tokens: Tokens | None = None
    tokens_missing: str = ""

    @property
    def errors(self) -> list[Finding]:
        found = () if self.verdict is None else self.verdict.findings
        return [finding for finding in found if finding.severity == "error"]


def predict(question: Question) -> Prediction:
    """Never raises for what the checkpoint is like: a source that cannot be judged says so in `missing`."""
    try:
        profile = profiles.load("vllm", question.version)
    except MlloadError as error:
        return Prediction("", error.message)
    profile = replace(profile, assumed={**profile.assumed, **question.platform.get("flags", {})})
    try:
        checkpoint = Checkpoint.open(question.source, revision=question.revision)
        model = read_model(checkpoint)
    except MlloadError as error:
        return Prediction(profile.version, error.message)
    gpu = gpu_of(question.platform)
    request = replace(
        question.request,
        capability=None if gpu is None or gpu.capability is None else ".".join(map(str, gpu.capability)),
        gpu=None if gpu is None else gpu.key,
        memory_gib=None if gpu is None else gpu.memory_gib,
    )
    plan = make_plan(
        model,
        profile,
        question.mesh,
        dtype=request.dtype,
        capability=None if gpu is None else gpu.capability,
        kv_dtype=request.kv_cache_dtype,
        quantization=request.quantization,
    )
    verdict = judge(plan, request)
    kernels = verdict.kernels
    if question.platform["device"] == "cpu":
        kernels = tuple(on_cpu(plan, profile))
        verdict = replace(with_findings(verdict, (f for one in kernels for f in one.refusals)), kernels=kernels)
    verdict = with_findings(verdict, question.findings)
    tokens, why = cache_tokens(plan, request, verdict.memory, question.platform, question.flags, question.variables)
    return Prediction(
        profile.version,
        verdict=verdict,
        ranks=tuple(
            {
                "rank": rank.rank,
                "disk_bytes": rank.disk_bytes,
                "weight_bytes": rank.weight_bytes,
                "kv_bytes_per_token": rank.kv_bytes_per_token,
            }
            for rank in plan.ranks()
        ),
        kernels=kernels,
        tokens=tokens,
        tokens_missing=why,
    )


def gpu_of(platform: Mapping[str, Any]) -> Gpu | None:
    """The GPU that the engine found, as `--gpu` would name it; None on a CPU."""
    if platform["device"] != "cuda" or not platform.get("capability"):
        return None
    major, minor = platform["capability"]
    memory = platform.get("memory")
    name = str(platform.get("name") or f"compute capability {major}.{minor}")
    return Gpu(name, name, (int(major), int(minor)), memory_gib=None if not memory else int(memory) / 2**30)


def on_cpu(plan: Plan, profile: Profile) -> Iterable[Choice]:
    """Who runs each kind of layer where there is no GPU."""
    for layer in plan.layers():
        yield choose(
            layer.shape,
            layer.scheme,
            plan.view.method,
            plan.dtype,
            None,
            profile,
            model_type=plan.model.config.text_type,
            where=layer.where,
            platform="cpu",
        )


def with_findings(verdict: Verdict, more: Iterable[Finding]) -> Verdict:
    """The verdict where these findings are known too."""
    added = tuple(more)
    if not added:
        return verdict
    combined = combine(once((*verdict.findings, *added)), verdict.unknowns, verdict.kernels)
    return replace(combined, fits=verdict.fits, memory=verdict.memory)
