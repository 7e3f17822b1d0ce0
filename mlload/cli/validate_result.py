"""What `mlload validate` knows: one entry per source and mesh, before anybody decides how to show it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.progress import stderr_progress
from mlload.cli.generations import Generation, by_generation
from mlload.plan.mesh import Mesh
from mlload.plan.model import Model, read_model
from mlload.plan.plan import Plan, make_plan, sound_plans
from mlload.plan.unknowns import Unknown
from mlload.profiles import Profile
from mlload.profiles.gpus import Gpu, judged_by_default
from mlload.validators.context import Request
from mlload.validators.loading import READS_RANKS
from mlload.validators.memory import memory_of
from mlload.validators.rules import attempt
from mlload.validators.verdict import Fits, Verdict, at_every_size, at_this_size, combine, fits_of, judge, kernels_of

if TYPE_CHECKING:
    from mlload.cli.validate_deep import Deep, Looked
    from mlload.cli.validate_upgrade import Upgrade
    from mlload.gate.waivers import Waived
    from mlload.profiles.serve_line import ServeLine


class WorkingSize(NamedTuple):
    """A mesh that would start; fits and max_model_len as in `Verdict` and `MemoryAnswer`, None without memory."""

    mesh: Mesh
    fits: Fits | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One source at one mesh. `model` and `plan` are None where there was nothing to plan by; the verdict
    then says why. `sizes_that_work` are meshes that would start, smallest first; `generations` are there when no
    GPU was named. `question`: what was asked of this source, settings for it included; `waived`: findings that do
    not count, and why; `ignored`: how many findings were left out by their codes."""

    source: str
    mesh: Mesh
    model: Model | None
    plan: Plan | None
    verdict: Verdict
    sizes_that_work: tuple[WorkingSize, ...]
    generations: tuple[Generation, ...] = ()
    checkpoint: Checkpoint | None = None
    question: Question | None = None
    waived: tuple[Waived, ...] = ()
    ignored: int = 0
    looked: Looked | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked of every source, as typed. `line`: the engine's own command, where one was given; `extra`: flags
    of the engine that were given beside our options, and that nothing is judged by."""

    meshes: tuple[Mesh, ...]
    profile: Profile
    gpu: Gpu | None = None
    asked: Request = field(default_factory=Request)
    assume_quant: str | None = None
    hf_overrides: dict[str, Any] = field(default_factory=dict)
    line: ServeLine | None = None
    extra: tuple[str, ...] = ()
    deep: Deep | None = None

    @property
    def judged(self) -> Gpu | None:
        """The GPU that the verdict is for: the one named, else one that most people rent, without its memory."""
        if self.gpu is not None or self.profile.engine != "vllm":
            return self.gpu
        return judged_by_default()

    @property
    def request(self) -> Request:
        """As asked, with the GPU."""
        gpu = self.judged
        return replace(
            self.asked,
            capability=None if gpu is None or gpu.capability is None else ".".join(map(str, gpu.capability)),
            gpu=None if gpu is None else gpu.key,
            memory_gib=None if gpu is None else gpu.memory_gib,
        )

    @property
    def capability(self) -> tuple[int, int] | None:
        return None if self.judged is None else self.judged.capability


@dataclass(frozen=True, slots=True)
class ValidateResult:
    """`not_judged`: flags that were given and that nothing was judged by, and what an optional package is missing for;
    `upgrades`: between the engines asked."""

    question: Question
    entries: tuple[Entry, ...]
    not_judged: tuple[str, ...] = ()
    upgrades: tuple[Upgrade, ...] = ()

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
    if question.hf_overrides:
        from mlload.profiles.hf_overrides import overridden

        checkpoint = replace(checkpoint, config=overridden(checkpoint.config, question.hf_overrides))
    if question.deep is not None:
        from mlload.cli.validate_deep import read_ahead

        read_ahead(checkpoint, question.deep)
    found = judge_checkpoint(as_cut(checkpoint), question)
    if question.deep is not None:
        from mlload.cli.validate_deep import with_contents

        found = with_contents(found, checkpoint, question.deep)
    return [replace(entry, checkpoint=checkpoint, question=question) for entry in found]


def as_cut(checkpoint: Checkpoint) -> Checkpoint:
    """Of a folder that was cut per rank, the checkpoint that was cut."""
    from mlload.cli.inspect_result import may_be_ranks

    if not may_be_ranks(checkpoint):
        return checkpoint
    from mlload.writer import ranks

    return ranks.as_cut(checkpoint)


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
    request = question.request
    entries = []
    for mesh in question.meshes:
        plan = plan_at(model, question, mesh)
        verdict = judge(plan, request)
        rows = by_generation(plan, request, verdict) if question.gpu is None and plan.capability is not None else ()
        entries.append(Entry(checkpoint.label, mesh, model, plan, verdict, (), rows))
    works = sizes(model, question, entries)
    return [replace(entry, sizes_that_work=works) for entry in entries]


def unreadable(label: str, question: Question, error: MlloadError, checkpoint: Checkpoint | None = None) -> list[Entry]:
    """Entries of a source that could not be planned: unknown, with what was found until then."""
    unknown = Unknown("this source", error.message, error.hint or "")
    verdict = combine(checkpoint.problems if checkpoint is not None else (), [unknown])
    return [Entry(label, mesh, None, None, verdict, ()) for mesh in question.meshes]


def sizes(model: Model, question: Question, entries: Sequence[Entry]) -> tuple[WorkingSize, ...]:
    """Meshes that would start; none where something that no size changes forbids every one. Asked for more tokens
    than the config allows, those that start with as many as it allows."""
    allowed = allowed_length(entries[0])
    if allowed is not None:
        question = replace(question, asked=replace(question.asked, max_model_len=allowed))
    loader = loader_of_ranks(model.checkpoint)
    if loader is not None:
        question = replace(question, asked=replace(question.asked, load_format=loader))
    plan, request = entries[0].plan, question.request
    if plan is None or any(at_every_size(plan, request)):
        return ()
    found = []
    cut = model.checkpoint.cut
    # Ranks of a cut start at its size alone, which may be none of the usual ones.
    tried = {} if cut is None else {"tp": (cut.tp,), "pp": (cut.pp,)}
    for other in sound_plans(
        model,
        profile_at(model, question),
        **tried,
        dp=entries[0].mesh.dp,
        dtype=request.dtype,
        capability=question.capability,
        kv_dtype=request.kv_cache_dtype,
        quantization=request.quantization,
    ):
        if not any(kernel.refusals for kernel in kernels_of(other)) and not any(at_this_size(other, request)):
            memory = attempt("memory", partial(memory_of, other, request), [])
            longest = None if memory is None else memory.max_model_len
            found.append(WorkingSize(other.mesh, fits_of(other, request, memory), longest))
    return tuple(found)


def allowed_length(entry: Entry) -> int | None:
    """Tokens that the config allows, where more were asked for; else None."""
    refusals = (f for f in entry.verdict.findings if f.code == "CF010" and f.severity == "error")
    return next((finding.numbers["derived"] for finding in refusals), None)


def loader_of_ranks(checkpoint: Checkpoint) -> str | None:
    """The engine's load format for a folder of ranks; None for any other, and for those that no engine reads."""
    cut = checkpoint.cut
    return None if cut is None or cut.layout == "mlload" else cut.layout


def plan_at(model: Model, question: Question, mesh: Mesh) -> Plan:
    request = question.request
    return make_plan(
        model,
        profile_at(model, question),
        mesh,
        dtype=request.dtype,
        capability=question.capability,
        kv_dtype=request.kv_cache_dtype,
        quantization=request.quantization,
    )


def profile_at(model: Model, question: Question) -> Profile:
    """The profile with the mode of the towers that was asked for; a class that cannot replicate them keeps cutting."""
    mode, profile = question.asked.tower_mode, question.profile
    if mode is None or mode == profile.tower_mode:
        return profile
    if mode == "data" and not any(profile.tower_can_replicate(name) for name in model.config.architectures):
        return profile
    return replace(profile, facts={**profile.facts, "mm_encoder_tp_mode": {"value": mode, "source": "asked"}})


def offered(entries: Sequence[Entry]) -> Entry:
    """Of several sizes of one source, the one that the closing line is for: the largest that starts, else the first,
    whose hints are the ones that findings show."""
    started = [entry for entry in entries if entry.verdict.starts]
    return started[-1] if started else entries[0]


def serve_command(entry: Entry, question: Question) -> str | None:
    """The line that would start these files: as asked where that works, else at the nearest size that does."""
    question = entry.question or question
    good = entry.verdict.starts and entry.verdict.verdict != "fail"
    length = None
    if good:
        mesh = entry.mesh
    else:
        found = nearest(entry)
        if found is None:
            return None
        mesh = found.mesh
        length = allowed_length(entry)
        if found.fits == "no":
            length = found.max_model_len
    words = loader_words(entry, mesh)
    line = question.line
    if line is not None and line.source in (None, entry.source):
        if line.source is None:  # the model was named before the engine's command
            line = replace(line, model=entry.source)
        return line.at(tp=mesh.tp, pp=mesh.pp, dp=mesh.dp, ep=mesh.ep, max_model_len=length, more=words)
    if words:
        question = replace(question, asked=replace(question.asked, load_format=words["load-format"]))
    more = [word for flag, value in words.items() if flag != "load-format" for word in (f"--{flag}", value)]
    flags = [*serve_flags(mesh, question, length), *([] if more and more[0] in question.extra else more)]
    return shlex.join(["vllm", "serve", entry.source, *flags, *question.extra])


def loader_words(entry: Entry, mesh: Mesh) -> dict[str, str]:
    """Flags by which the engine reads a folder of ranks; {} for any other source. vLLM looks for `model.tensors` by
    itself, and wants the names of several ranks' files told."""
    checkpoint = entry.model.checkpoint if entry.model is not None else None
    loader = loader_of_ranks(checkpoint) if checkpoint is not None else None
    if checkpoint is None or loader is None:
        return {}
    asked = entry.question.asked.load_format if entry.question is not None else "auto"
    words = {"load-format": asked if READS_RANKS.get(asked) == loader else loader}
    if loader == "tensorizer" and mesh.tp > 1:
        (*_, name) = sorted(file.name for file in checkpoint.files if file.name.endswith(".tensors"))
        uri = entry.source.rstrip("/") + "/" + numbered(name)
        words["model-loader-extra-config"] = json.dumps({"tensorizer_uri": uri})
    return words


def numbered(name: str) -> str:
    """ "model-rank-%03d.tensors" of "model-rank-007.tensors"."""
    match = re.fullmatch(r"(.*?)(\d+)(\.tensors)", name)
    return name if match is None else f"{match[1]}%0{len(match[2])}d{match[3]}"


def nearest(entry: Entry) -> WorkingSize | None:
    """Of the sizes that work the one most like what was asked: one that fits before one that does not, as many GPUs
    or fewer before more. One that fits no request at all is none."""
    sizes = [size for size in entry.sizes_that_work if size.fits != "no" or size.max_model_len]
    world = entry.mesh.tp * entry.mesh.pp
    return min(
        sizes,
        key=lambda size: (
            size.fits == "no",
            size.mesh.tp * size.mesh.pp > world,
            abs(world - size.mesh.tp * size.mesh.pp),
            size.mesh.pp,
        ),
        default=None,
    )


def serve_flags(mesh: Mesh, question: Question, length: int | None = None) -> list[str]:
    """The engine's own flags for a mesh and what was asked, but for a dtype that it would choose anyway."""
    asked = question.asked
    if length is None:
        length = asked.max_model_len
    pairs = (
        ("--tensor-parallel-size", mesh.tp if mesh.tp > 1 else None),
        ("--pipeline-parallel-size", mesh.pp if mesh.pp > 1 else None),
        ("--data-parallel-size", mesh.dp if mesh.dp > 1 else None),
        ("--enable-expert-parallel", mesh.ep),
        ("--nnodes", asked.nodes if asked.nodes > 1 else None),
        ("--node-rank", 0 if asked.nodes > 1 else None),
        ("--master-addr", "ADDRESS" if asked.nodes > 1 else None),
        ("--dtype", asked.dtype if asked.dtype != "auto" else None),
        ("--quantization", asked.quantization),
        ("--kv-cache-dtype", asked.kv_cache_dtype if asked.kv_cache_dtype != "auto" else None),
        ("--max-model-len", "auto" if length == -1 else length),
        ("--max-num-seqs", asked.max_num_seqs),
        ("--max-num-batched-tokens", asked.max_num_batched_tokens),
        ("--gpu-memory-utilization", asked.gpu_memory_utilization),
        ("--enforce-eager", asked.enforce_eager),
        ("--load-format", asked.load_format if asked.load_format != "auto" else None),
        ("--mm-encoder-tp-mode", asked.tower_mode),
        ("--trust-remote-code", asked.trust_remote_code),
    )
    words: list[str] = []
    for flag, value in pairs:
        if value is not None and value is not False:
            words += [flag] if value is True else [flag, str(value)]
    return words
