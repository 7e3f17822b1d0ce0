"""`mlload validate`: will it start at this size, and is it then right. The exit code is for gates."""

from __future__ import annotations

from typing import Annotated

import typer

from mlload.checkpoint.finding import MlloadError
from mlload.cli.options import (
    AssumeQuantOpt,
    EngineOpt,
    EpOpt,
    FormatOpt,
    OutputOpt,
    PpOpt,
    RevisionOpt,
    SourcesArg,
    TextOrJson,
    TpOpt,
    TrustOpt,
    capability,
    sizes,
    source_or_here,
)
from mlload.cli.output import Output

GpuOpt = Annotated[
    str | None,
    typer.Option("--gpu", metavar="cc:X.Y", help="Compute capability of the GPU. Nothing is judged about memory."),
]
StrictOpt = Annotated[bool, typer.Option("--strict", help="Exit 1 for warnings too.")]
AllowUnknownOpt = Annotated[bool, typer.Option("--allow-unknown", help="Exit 0 where something could not be judged.")]


def command(
    ctx: typer.Context,
    sources: SourcesArg = None,
    tp: TpOpt = None,
    pp: PpOpt = "1",
    ep: EpOpt = False,
    gpu: GpuOpt = None,
    engine: EngineOpt = "vllm",
    assume_quant: AssumeQuantOpt = None,
    trust_remote_code: TrustOpt = False,
    revision: RevisionOpt = None,
    strict: StrictOpt = False,
    allow_unknown: AllowUnknownOpt = False,
    format: FormatOpt = TextOrJson.text,
    output: OutputOpt = None,
) -> None:
    """Whether an engine will start it at these sizes, and every reason why not.

    Exit code: 0 yes, 1 no, 2 wrong usage, 3 could not be judged.
    """
    from mlload.cli.validate_result import Question, ValidateResult, judge_source
    from mlload.plan.mesh import Mesh
    from mlload.profiles import load, parse_engine

    out: Output = ctx.obj
    meshes = tuple(
        Mesh(tp=tensor, pp=stages, ep=ep) for stages in sizes(pp, "--pp") for tensor in sizes(tp or "1", "--tp")
    )
    question = Question(
        meshes=meshes,
        profile=load(*parse_engine(engine)),
        gpu=gpu,
        capability=capability(gpu),
        trust_remote_code=trust_remote_code,
        assume_quant=assume_quant,
    )
    named = sources or [source_or_here(None, "validate")]
    entries = [entry for source in named for entry in judge_source(source, question, revision, alone=len(named) == 1)]
    result = ValidateResult(question, tuple(entries))
    report = Output(out.stdout, out.stderr, width=out.width, unicode=out.unicode) if output else out
    if format is TextOrJson.json:
        import json

        from mlload.cli.validate_json import document

        report.write(json.dumps(document(result, not_judged=[]), indent=2))
    else:
        from mlload.cli.validate_text import render

        report.print_all(render(result, report.width))
    if output is not None:
        try:
            output.write_text("".join(report.pending), encoding="utf-8")
        except OSError as error:
            raise MlloadError(f"cannot write {output}: {error.strerror}") from error
        out.note(f"wrote {output}")
    if code := result.exit_code(strict=strict, allow_unknown=allow_unknown):
        raise typer.Exit(code)
