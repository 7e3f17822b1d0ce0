"""`mlload validate`: will it start at this size, and is it then right. The exit code is for gates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mlload.checkpoint.finding import MlloadError
from mlload.cli import options
from mlload.cli.engine_options import engine_options, request_from
from mlload.cli.output import Output

EXAMPLES = """\b
mlload validate ./llama-70b --tp 8 --gpu h100 --max-model-len 32k
mlload validate ./llama-70b --tp 1,2,4,8 --pp 2
mlload validate model-a model-b --tp 4 --format json --output report.json
"""


@click.command(epilog=EXAMPLES)
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
@options.engine
@options.assume_quant
@options.revision
@click.option("--strict", is_flag=True, help="Exit 1 for warnings too.")
@click.option("--allow-unknown", is_flag=True, help="Exit 0 where something could not be judged.")
@options.text_or_json
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the report there instead.",
)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    sources: tuple[str, ...],
    tp: str | None,
    pp: str,
    ep: bool,
    dp: str,
    gpu: str | None,
    engine: str,
    assume_quant: str | None,
    revision: str | None,
    strict: bool,
    allow_unknown: bool,
    form: str,
    output: Path | None,
    **asked: Any,
) -> None:
    """Whether an engine will start it, and every reason why not.

    Exit code: 0 yes, 1 no, 2 wrong usage, 3 could not be judged.
    """
    from mlload.cli.validate_result import Question, ValidateResult, judge_source
    from mlload.plan.mesh import Mesh
    from mlload.profiles import load, parse_engine
    from mlload.profiles.gpus import find

    options.answer_once(ctx)
    out: Output = ctx.obj
    replicas = options.one_size(dp, "--dp")
    meshes = tuple(
        Mesh(tp=tensor, pp=stages, ep=ep, dp=replicas)
        for stages in options.sizes(pp, "--pp")
        for tensor in options.sizes("1" if tp is None else tp, "--tp")
    )
    question = Question(
        meshes=meshes,
        profile=load(*parse_engine(engine)),
        gpu=None if gpu is None else find(gpu),
        asked=request_from(asked),
        assume_quant=assume_quant,
    )
    named = sources or (options.source_or_here(None, "validate"),)
    entries = [entry for source in named for entry in judge_source(source, question, revision, alone=len(named) == 1)]
    result = ValidateResult(question, tuple(entries))
    out.kept.append(result)
    report = Output(out.stdout, out.stderr, width=out.width, unicode=out.unicode) if output else out
    if form == "json":
        from mlload.cli.validate_json import document

        report.json(document(result))
    else:
        from mlload.cli.validate_text import render

        report.print_all(render(result, report.width))
    if output is not None:
        try:
            output.write_text(report.document, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise MlloadError(f"cannot write {output}: {error.strerror}") from error
        out.note(f"wrote {output}")
    ctx.exit(result.exit_code(strict=strict, allow_unknown=allow_unknown))
