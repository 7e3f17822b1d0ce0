"""The two answers about one checkpoint at one size: does the engine start, and is it then right.

They are never mixed: an engine starts some checkpoints that then answer nonsense.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from mlload.checkpoint.checkpoint import Cut
from mlload.checkpoint.finding import Finding, by_severity
from mlload.kernels.choice import Choice, choose
from mlload.plan.kv import KV_DTYPES
from mlload.plan.memory import MemoryAnswer
from mlload.plan.plan import Plan
from mlload.plan.unknowns import Unknown
from mlload.profiles.quantization import resolve_quantization
from mlload.profiles.refusals import config_refusals, dtype_refusals, quant_refusals
from mlload.validators import rules
from mlload.validators.context import Context, Request
from mlload.validators.engine_facts import as_far_as_known, missing_facts
from mlload.validators.memory import memory_of

Word = Literal["ok", "warn", "fail", "unknown"]
Fits = Literal["yes", "tight", "no", "unknown"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """starts:   True, False where a refusal is certain, None where it cannot be said
    verdict:  "fail" for any error, else "unknown" for anything that matters and could not be judged,
              else "warn" for any warning, else "ok"
    findings: most severe first
    kernels:  who runs each kind of layer on the GPU that was named; () without one
    fits:     "unknown" where a memory size was named and could not be judged against; None without one
    memory:   the figures behind it
    """

    starts: bool | None
    verdict: Word
    findings: tuple[Finding, ...]
    unknowns: tuple[Unknown, ...]
    kernels: tuple[Choice, ...] = ()
    fits: Fits | None = None
    memory: MemoryAnswer | None = None


def judge(plan: Plan, request: Request) -> Verdict:
    """Everything that is known about one plan: files, tensors, the engine's config checks, sizes, kernels, rules."""
    model = plan.model
    kernels = tuple(kernels_of(plan))
    unjudged: list[rules.Broken] = []
    memory = rules.attempt("memory", partial(memory_of, plan, request), unjudged)
    from_rules, broken = rules.run(Context(model, plan, request, memory))
    headless = {f"{finding.where}.weight" for finding in from_rules if finding.code == "CF005"}
    findings = (
        *model.checkpoint.problems,
        *engine_refusals(plan, request),
        # A head that is neither stored nor tied is told with its cause.
        *(finding for finding in model.findings if finding.code != "TN001" or finding.where not in headless),
        *as_far_as_known(plan.violations, plan),
        *(finding for choice in kernels for finding in choice.refusals),
        *from_rules,
    )
    unknowns = [
        *plan.unknowns,
        *missing_facts(plan),
        *untold(model.checkpoint.cut),
        *(Unknown(f"rule {rule.code}", rule.error, "") for rule in (*unjudged, *broken)),
    ]
    verdict = combine(once(findings), unknowns, kernels)
    return replace(verdict, fits=fits_of(plan, request, memory), memory=memory)


def untold(cut: Cut | None) -> Iterator[Unknown]:
    """What a folder of ranks does not tell of the checkpoint that was cut."""
    if cut is not None and cut.untold:
        yield Unknown("what the ranks' files hold", cut.untold, "start the engine on them")


def fits_of(plan: Plan, request: Request, memory: MemoryAnswer | None) -> Fits | None:
    """Weights are exact only where the architecture is known, and the quantization is the one of the files."""
    if request.memory_gib is None:
        return None
    if memory is None or plan.unknowns or (request.quantization and plan.model.quant is None):
        return "unknown"
    if request.kv_cache_dtype not in ("auto", *KV_DTYPES):
        return "unknown"  # a packing of its own
    return memory.fits


def engine_refusals(plan: Plan, request: Request) -> Iterator[Finding]:
    """What the engine refuses before it builds a layer: architecture and quantization config."""
    checkpoint, profile = plan.model.checkpoint, plan.profile
    yield from config_refusals(checkpoint.config, profile, trust_remote_code=request.trust_remote_code)
    resolved = resolve_quantization(checkpoint.config, checkpoint.json_files, profile, asked=request.quantization)
    yield from resolved.findings
    yield from quant_refusals(resolved, plan.dtype, plan.capability, profile)
    yield from dtype_refusals(plan.model.config.model_type, request.dtype, plan.capability, profile)
    if checkpoint.format == "gguf" and resolved.method is None:
        # A GGUF file declares nothing: its suffix makes the engine ask for the method by itself.
        implied = resolve_quantization({}, {}, profile, asked="gguf")
        yield from (replace(finding, where=checkpoint.label) for finding in implied.findings)


def of_gpu(plan: Plan, request: Request) -> Iterator[Finding]:
    """What depends on the GPU: the engine's config checks, sizes, kernels, dtypes; nothing about memory."""
    yield from engine_refusals(plan, request)
    yield from plan.violations
    for choice in kernels_of(plan):
        yield from choice.refusals
    yield from _by_rules(("DT",), plan, request)


def at_every_size(plan: Plan, request: Request) -> Iterator[Finding]:
    """Errors that no parallel size changes: of the files, their tensors, their names, the config, the GPU's dtypes, and
    of what was asked beside the sizes."""
    from_rules = _by_rules(
        ("CF", "FI", "LO", "NM", "DT", "DR002", "DR003", "LD001", "LD002", "LD005", "LD006"), plan, request
    )
    found = (*plan.model.checkpoint.problems, *engine_refusals(plan, request), *plan.model.findings, *from_rules)
    return (finding for finding in found if finding.severity == "error")


def at_this_size(plan: Plan, request: Request) -> Iterator[Finding]:
    """Errors of what was asked beside the sizes, that another size may not have: of a draft's own parallel size, of
    files that were written for one size."""
    return (
        finding
        for finding in _by_rules(("DR001", "DR004", "LD003", "TP031"), plan, request)
        if finding.severity == "error"
    )


def _by_rules(codes: tuple[str, ...], plan: Plan, request: Request) -> list[Finding]:
    """What the rules say whose codes begin so."""
    chosen = [rule for rule in rules.all_rules() if rule.code.startswith(codes)]
    return rules.run(Context(plan.model, plan, request), chosen)[0]


def kernels_of(plan: Plan) -> Iterator[Choice]:
    """One choice per kind of layer on one rank; none where no GPU was named."""
    if plan.capability is None:
        return
    for layer in plan.layers():
        yield choose(
            layer.shape,
            layer.scheme,
            plan.view.method,
            plan.dtype,
            plan.capability,
            plan.profile,
            model_type=plan.model.config.text_type,
            where=layer.where,
        )


def once(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Several judges may find the same: said by its code, place and sentence once."""
    seen: set[tuple[str, str, str]] = set()
    for finding in findings:
        key = (finding.code, finding.where, finding.message)
        if key not in seen:
            seen.add(key)
            yield finding


def combine(findings: Iterable[Finding], unknowns: Iterable[Unknown], kernels: tuple[Choice, ...] = ()) -> Verdict:
    """Findings and open questions as one verdict."""
    found, open_questions = tuple(by_severity(list(findings))), tuple(unknowns)
    errors = [finding for finding in found if finding.severity == "error"]
    refused = any(finding.question == "starts" for finding in errors)
    starts = False if refused else None if open_questions else True
    if errors:
        word: Word = "fail"
    elif open_questions:
        word = "unknown"
    else:
        word = "warn" if any(finding.severity == "warning" for finding in found) else "ok"
    return Verdict(starts, word, found, open_questions, kernels)
