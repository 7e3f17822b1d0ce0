"""`mlload validate`: will it start at this size, and is it then right. The exit code is for gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click

from mlload.checkpoint.finding import MlloadError
from mlload.cli import options
from mlload.cli.companions import companion_options, companion_words, with_companions
from mlload.cli.engine_options import engine_options, request_from
from mlload.cli.output import Output
from mlload.cli.serve_command import ALLOW_LONG, META, PARTITION, Asked, ServeCommand

if TYPE_CHECKING:
    from mlload.cli.validate_batch import Batch
    from mlload.cli.validate_result import Entry, Question, ValidateResult
    from mlload.profiles.profile import Profile

EXAMPLES = """\b
mlload validate ./llama-70b --tp 8 --gpu h100 --max-model-len 32k
mlload validate ./llama-70b --tp 1,2,4,8 --pp 2
mlload validate model-a model-b --tp 4 --format json --output report.json
mlload validate -- vllm serve org/name --tensor-parallel-size 8 --enable-expert-parallel
mlload validate ./llama-70b --tp 8 --lock approved.json
mlload validate --batch models.txt -j 16 --tp 1,8
"""
# Options that are ours alone: the engine has no such flags.
OURS = (
    "gpu", "engine", "assume_quant", "strict", "allow_unknown", "select", "ignore", "lock", "against", "form",
    "output", "storage", "serve_config", "deep", "manifest", "write_manifest", "batch", "jobs", "answers",
)  # fmt: skip

DEEP = "mlload.deep"  # in ctx.meta: what is asked of the bytes, and the passes made


@click.command(cls=ServeCommand, own=OURS, epilog=EXAMPLES)
@options.sources
@options.tp
@options.pp
@options.ep
@options.dp
@click.option(
    "--gpu",
    metavar="NAME",
    help="Such as h100, cc:9.0 (a compute capability), cc:9.0,mem:80, or local; one row a generation without it.",
)
@engine_options
@companion_options
@click.option("--hf-overrides", metavar="JSON", help="Changes to config.json, as the engine makes them.")
@click.option("--serve-config", metavar="FILE", help="The engine's own YAML of flags (its --config).")
@options.engine
@options.assume_quant
@options.revision
@click.option("--deep", is_flag=True, help="Read all weights, too: NaN, zero scales, holes, digests that are known.")
@click.option("--manifest", metavar="FILE", help="Compare the files' sha256 with a list as sha256sum writes it.")
@click.option("--write-manifest", metavar="FILE", help="Write such a list of all files.")
@click.option("--select", metavar="CODES", multiple=True, help="Only these codes, or what they begin with: TP,TN003.")
@click.option("--ignore", metavar="CODES", multiple=True, help="Not these codes, or what they begin with.")
@click.option("--strict", is_flag=True, help="Exit 1 for warnings too.")
@click.option("--allow-unknown", is_flag=True, help="Exit 0 where something could not be judged.")
@click.option("--lock", metavar="FILE", type=click.Path(dir_okay=False), help="Write what is approved: files, answers.")
@click.option("--against", metavar="FILE", type=click.Path(dir_okay=False), help="Exit 1 where a lock no longer holds.")
@click.option("--batch", metavar="FILE", help="Many sources, one a line; the answers are kept, so it can go on later.")
@click.option("-j", "--jobs", metavar="N", help="Sources of a batch that are judged at a time.")
@click.option("--answers", metavar="FILE", help="Where a batch keeps its answers; FILE.answers.jsonl unless given.")
@options.report_format
@click.option("--output", metavar="FILE", type=click.Path(dir_okay=False), help="Write the report there instead.")
@click.pass_context
def command(ctx: click.Context, /, sources: tuple[str, ...], **values: Any) -> None:
    """Whether an engine will start it, and every reason why not.

    Flags of the engine are understood in its own spelling; those that nothing is judged by are listed. After "--",
    the engine's whole command: vllm serve MODEL --tensor-parallel-size 8.

    Exit code: 0 yes, 1 no, 2 wrong usage, 3 could not be judged.
    """
    options.answer_once(ctx)
    refuse_forgotten_dashes(sources)
    out: Output = ctx.obj
    lenient = {"strict": values["strict"], "allow_unknown": values["allow_unknown"]}
    notes = []
    if values["batch"] is not None:
        listed = batch(ctx, sources, values)
        code = listed.exit_code(**lenient)
        render = partial(show_batch, listed, values["form"])
    elif values["answers"] is not None or values["jobs"] is not None:
        raise MlloadError("-j and --answers belong to --batch", hint="mlload validate --batch FILE -j 16")
    else:
        result = answer(ctx, sources or (options.source_or_here(None, "validate"),), values)
        out.kept.append(result)
        code = result.exit_code(**lenient)
        render = partial(show, result, values)
        if values["lock"] is not None:
            notes.append(lock(result, values["lock"], code))
    if values["output"] is None:
        render(out)
    else:
        from mlload.cli.report import write_atomically

        report = Output(out.stdout, out.stderr, width=out.width, unicode=out.unicode)
        render(report)
        try:
            write_atomically(values["output"], report.document)
        except OSError as error:
            raise MlloadError(f"cannot write {values['output']}: {error.strerror}") from error
        notes.append(f"wrote {values['output']}")
    for note in notes:
        out.note(note)
    ctx.exit(code)


def batch(ctx: click.Context, sources: Sequence[str], values: Mapping[str, Any]) -> Batch:
    """Every source of a list, each in a process of its own."""
    from mlload.checkpoint.sources.progress import stderr_progress
    from mlload.cli import validate_batch
    from mlload.profiles import load, parse_engine

    if sources:
        raise MlloadError(f"--batch names the sources, and {sources[0]} is one more", hint="add it to the list")
    deep_of(ctx, (), values)
    question = question_of(ctx, values, load(*parse_engine(str(values["engine"]).rsplit(",", 1)[-1])))
    return validate_batch.run(ctx, values, lambda one: answer(ctx, one, values), question, stderr_progress())


def refuse_forgotten_dashes(sources: Sequence[str]) -> None:
    """The engine's command without "--" before it would be taken for sources that are called like its words."""
    words = " ".join(sources).split()
    if any(one.rpartition("/")[2] == "vllm" and two == "serve" for one, two in pairwise(words)):
        raise MlloadError(
            "the engine's command stands after --", hint="mlload validate -- vllm serve MODEL --tensor-parallel-size 8"
        )


def answer(ctx: click.Context, sources: Sequence[str], values: Mapping[str, Any]) -> ValidateResult:
    """Every source judged, by each engine that was asked for; the last one's answer is the answer."""
    from mlload.cli.validate_result import ValidateResult
    from mlload.profiles import load, parse_engine

    deep_of(ctx, sources, values)
    profiles = [load(*parse_engine(word)) for word in str(values["engine"]).split(",")]
    # A lock is held against the answer, not against the engines that it is compared with.
    before = {**values, "against": None}
    found = [judged(ctx, sources, before, profile) for profile in profiles[:-1]]
    found.append(judged(ctx, sources, values, profiles[-1]))
    upgrades = []
    if len(profiles) > 1:
        from mlload.cli.validate_upgrade import upgrade

        for at in range(1, len(profiles)):
            upgrades.append(upgrade(profiles[at - 1], profiles[at], found[at - 1], found[at]))
    asked: Asked = ctx.meta[META]
    question = question_of(ctx, values, profiles[-1])
    return ValidateResult(question, tuple(found[-1]), (*asked.not_judged, *passed_over(found[-1])), tuple(upgrades))


def passed_over(entries: Sequence[Entry]) -> list[str]:
    """What was not looked at for want of an optional package, each once."""
    from mlload.validators.chat_template import not_rendered

    if any(entry.checkpoint is not None and not_rendered(entry.checkpoint) for entry in entries):
        return ["chat template rendering (pip install 'mlload[chat]')"]
    return []


def judged(ctx: click.Context, sources: Sequence[str], values: Mapping[str, Any], profile: Profile) -> list[Entry]:
    """Entries of all sources for one engine, with what counts."""
    from mlload.cli.validate_result import judge_source

    asked: Asked = ctx.meta[META]
    entries: list[Entry] = []
    for source in sources:
        mine = {**values, **as_typed(ctx, asked.settings.for_source(source))}
        question = question_of(ctx, mine, profile)
        found = judge_source(source, question, values["revision"], alone=len(sources) == 1)
        entries += gated(found, asked, mine, profile, len(sources) == 1)
    return entries


def question_of(ctx: click.Context, values: Mapping[str, Any], profile: Profile) -> Question:
    from mlload.cli.validate_result import Question
    from mlload.plan.mesh import Mesh
    from mlload.profiles.gpus import find

    asked: Asked = ctx.meta[META]
    replicas = options.one_size(values["dp"], "--dp")
    meshes = tuple(
        Mesh(tp=tensor, pp=stages, ep=values["ep"], dp=replicas, partition=partition_of(asked))
        for stages in options.sizes(values["pp"], "--pp")
        for tensor in options.sizes("1" if values["tp"] is None else values["tp"], "--tp")
    )
    overrides: dict[str, Any] = {}
    if values["hf_overrides"] is not None:
        from mlload.profiles.hf_overrides import read_overrides

        overrides = read_overrides(values["hf_overrides"])
    return Question(
        meshes=meshes,
        profile=profile,
        gpu=None if values["gpu"] is None else find(values["gpu"]),
        asked=replace(with_companions(ctx, request_from(values), values), long_allowed=allows_long(asked)),
        assume_quant=values["assume_quant"],
        hf_overrides=overrides,
        line=asked.line,
        extra=(*companion_words(values), *asked.extra),
        deep=ctx.meta[DEEP],
    )


def deep_of(ctx: click.Context, sources: Sequence[str], values: Mapping[str, Any]) -> None:
    """One pass over the bytes for all engines and sizes; kept in `ctx.meta`."""
    ctx.meta[DEEP] = None
    if values["deep"] or values["manifest"] or values["write_manifest"]:
        from mlload.cli.validate_deep import deep_from

        ctx.meta[DEEP] = deep_from(values["deep"], values["manifest"], values["write_manifest"], len(sources))


def partition_of(asked: Asked) -> tuple[int, ...] | None:
    """Layers of each pipeline stage, where the engine's variable for them stands before its command."""
    text = dict(asked.line.variables).get(PARTITION) if asked.line is not None else None
    if not text:
        return None
    if not all(part.strip().isdigit() for part in text.split(",")):
        raise MlloadError(f"{PARTITION} takes layers of each stage such as 15,15,16,15, not {text!r}")
    return tuple(int(part) for part in text.split(","))


def allows_long(asked: Asked) -> bool:
    """The variable stands before the engine's command, with a value that vLLM takes for yes (envs.py:1115)."""
    value = dict(asked.line.variables).get(ALLOW_LONG, "") if asked.line is not None else ""
    return value.strip().lower() in ("1", "true")


def as_typed(ctx: click.Context, override: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a settings override, read as if they had been typed."""
    from mlload.cli.serve_command import as_text

    params = {param.name: param for param in ctx.command.params if isinstance(param, click.Option)}
    return {name: params[name].type_cast_value(ctx, as_text(value, params[name])) for name, value in override.items()}


def gated(entries: list[Entry], asked: Asked, values: Mapping[str, Any], profile: Profile, alone: bool) -> list[Entry]:
    """Entries of one source with what counts, and what changed since its lock."""
    line = asked.line.findings if asked.line is not None else ()
    waivers = asked.settings.waivers
    if not (line or waivers or values["select"] or values["ignore"] or values["against"]):
        return entries
    from datetime import date

    from mlload.cli.rules import all_rules
    from mlload.cli.validate_gate import Gate, compare, sifted
    from mlload.gate.selection import Selection, read_codes

    named = values["select"] or values["ignore"]
    codes = [rule.code for rule in all_rules()] if named else []
    selection = Selection(
        read_codes(values["select"], "--select", codes), read_codes(values["ignore"], "--ignore", codes)
    )
    gate = Gate(selection, waivers, line, date.today())
    found = [sifted(entry, gate) for entry in entries]
    if values["against"] is None:
        return found
    changed = compare(found, values["against"], profile, alone)
    return [sifted(entry, gate, more) for entry, more in zip(entries, changed, strict=True)]


def lock(result: ValidateResult, path: str, code: int) -> str:
    """Writes the lock where the answer is yes; says what it did."""
    if code != 0:
        return f"nothing is approved: {path} is not written"
    from mlload.cli.validate_gate import write_lock

    write_lock(result.entries, path, result.question.profile)
    return f"approved: wrote {path}"


def show_batch(listed: Batch, form: str, out: Output) -> None:
    from mlload.cli.validate_batch_text import document, render

    if form == "json":
        out.json(document(listed))
    else:
        out.print_all(render(listed, out.width))


def show(result: ValidateResult, values: Mapping[str, Any], out: Output) -> None:
    form = values["form"]
    if form == "json":
        from mlload.cli.validate_json import document

        out.json(document(result))
    elif form == "text":
        from mlload.cli.validate_text import render

        out.print_all(render(result, out.width))
    else:
        from mlload.cli.report import renderer
        from mlload.cli.validate_report import report

        out.write(renderer(form)(report(result, strict=values["strict"], allow_unknown=values["allow_unknown"])))
