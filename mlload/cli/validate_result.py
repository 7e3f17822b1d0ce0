"""What `mlload validate` knows: one entry per source and mesh, before anybody decides how to show it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.progress import stderr_progress
from mlload.plan.mesh import Mesh
from mlload.plan.model import Model, read_model
from mlload.plan.plan import Plan, make_plan, sizes_that_work
from mlload.plan.unknowns import Unknown
from mlload.profiles import Profile
from mlload.profiles.gpus import Gpu
from mlload.validators.context import Request
from mlload.validators.verdict import Verdict, at_every_size, combine, judge, kernels_of


@dataclass(frozen=True, slots=True)
class Entry:
    """One source at one mesh. `model` and `plan` are None where there was nothing to plan by; the verdict
    then says why. `sizes_that_work` are meshes that would start, smallest first."""

    source: str
    mesh: Mesh
    model: Model | None
    plan: Plan | None
    verdict: Verdict
    sizes_that_work: tuple[Mesh, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked of every source, as typed."""

    meshes: tuple[Mesh, ...]
    profile: Profile
    gpu: Gpu | None = None
    trust_remote_code: bool = False
    assume_quant: str | None = None

    @property
    def request(self) -> Request:
        gpu = self.gpu
        return Request(
            capability=None if gpu is None or gpu.capability is None else ".".join(map(str, gpu.capability)),
            gpu=None if gpu is None else gpu.key,
            memory_gib=None if gpu is None else gpu.memory_gib,
            trust_remote_code=self.trust_remote_code,
        )

    @property
    def capability(self) -> tuple[int, int] | None:
        return None if self.gpu is None else self.gpu.capability


@dataclass(frozen=True, slots=True)
class ValidateResult:
    question: Question
    entries: tuple[Entry, ...]

    def exit_code(self, *, strict: bool = False, allow_unknown: bool = False) -> int:
        """1 when any verdict is fail (with strict, also for warnings), 3 when something that matters is unknown."""
        words = {entry.verdict.verdict for entry in self.entries}
        if "fail" in words or (strict and "warn" in words):
            return 1
        return 3 if "unknown" in words and not allow_unknown else 0


def judge_source(source: str, question: Question, revision: str | None, *, alone: bool) -> list[Entry]:
    """Entries of one source. One that cannot be opened is an error when asked for alone, and an unknown
    among others, which are still judged."""
    try:
        checkpoint = Checkpoint.open(source, revision=revision, progress=stderr_progress())
    except MlloadError as error:
        if alone:
            raise
        return unreadable(source, question, error)
    return judge_checkpoint(checkpoint, question)


def judge_checkpoint(checkpoint: Checkpoint, question: Question) -> list[Entry]:
    """One entry per mesh; the model is read once."""
    if checkpoint.format == "adapter":
        return [
            Entry(checkpoint.label, mesh, None, None, combine(checkpoint.problems, []), ()) for mesh in question.meshes
        ]
    try:
        model = read_model(checkpoint, assume_quant=question.assume_quant)
    except MlloadError as error:
        if error.exit_code == 2:
            raise
        return unreadable(checkpoint.label, question, error, checkpoint)
    entries = []
    for mesh in question.meshes:
        plan = plan_at(model, question, mesh)
        entries.append(Entry(checkpoint.label, mesh, model, plan, judge(plan, question.request), ()))
    works = sizes(model, question, entries)
    return [replace(entry, sizes_that_work=works) for entry in entries]


def unreadable(label: str, question: Question, error: MlloadError, checkpoint: Checkpoint | None = None) -> list[Entry]:
    """Entries of a source that could not be planned: unknown, with what was found until then."""
    unknown = Unknown("this source", error.message, error.hint or "")
    verdict = combine(checkpoint.problems if checkpoint is not None else (), [unknown])
    return [Entry(label, mesh, None, None, verdict, ()) for mesh in question.meshes]


def sizes(model: Model, question: Question, entries: Sequence[Entry]) -> tuple[Mesh, ...]:
    """Meshes that would start; none where something that no size changes forbids every one."""
    plan = entries[0].plan
    if plan is None or any(at_every_size(plan, question.request)):
        return ()
    found = sizes_that_work(model, question.profile, capability=question.capability)
    if question.capability is None:
        return found
    return tuple(
        mesh for mesh in found if not any(kernel.refusals for kernel in kernels_of(plan_at(model, question, mesh)))
    )


def plan_at(model: Model, question: Question, mesh: Mesh) -> Plan:
    return make_plan(model, question.profile, mesh, capability=question.capability)


def serve_command(entry: Entry, question: Question) -> str | None:
    """The line that would start these files: as asked where that works, else at the nearest size that does."""
    good = entry.verdict.starts and entry.verdict.verdict != "fail"
    meshes: Sequence[Mesh] = (entry.mesh,) if good else entry.sizes_that_work
    if not meshes or (entry.verdict.starts is None and not entry.sizes_that_work):
        return None
    world = entry.mesh.tp * entry.mesh.pp
    mesh = min(meshes, key=lambda mesh: (mesh.tp * mesh.pp > world, abs(world - mesh.tp * mesh.pp), mesh.pp))
    words = ["vllm", "serve", entry.source]
    if mesh.tp > 1:
        words += ["--tensor-parallel-size", str(mesh.tp)]
    if mesh.pp > 1:
        words += ["--pipeline-parallel-size", str(mesh.pp)]
    if mesh.ep:
        words.append("--enable-expert-parallel")
    if question.trust_remote_code:
        words.append("--trust-remote-code")
    return shlex.join(words)
