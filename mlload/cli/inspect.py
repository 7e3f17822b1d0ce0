"""`mlload inspect`: what is this checkpoint, and what would each rank hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlload.cli.options import (
    AssumeQuantOpt,
    EngineOpt,
    EpOpt,
    FormatOpt,
    PpOpt,
    RevisionOpt,
    SourceArg,
    TextOrJson,
    TpOpt,
    one_size,
    sizes,
    source_or_here,
)
from mlload.cli.output import Output

TensorsOpt = Annotated[
    str | None,
    typer.Option("--tensors", metavar="[GLOB]", help="List tensors with role, shape, dtype, cut and file."),
]
HtmlOpt = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Also write one self-contained page with pictures.")
]


def command(
    ctx: typer.Context,
    source: SourceArg = None,
    tp: TpOpt = None,
    pp: PpOpt = "1",
    ep: EpOpt = False,
    tensors: TensorsOpt = None,
    assume_quant: AssumeQuantOpt = None,
    engine: EngineOpt = "vllm",
    revision: RevisionOpt = None,
    format: FormatOpt = TextOrJson.text,
    html: HtmlOpt = None,
) -> None:
    """What a checkpoint is, and what each rank would hold.

    Architecture, quantization, files, bytes, memory per rank, problems. Reads headers and small files only: of
    a remote source no weights are downloaded.
    """
    from mlload.checkpoint.checkpoint import Checkpoint
    from mlload.checkpoint.sources.progress import stderr_progress
    from mlload.cli.inspect_result import run
    from mlload.profiles import load, parse_engine

    out: Output = ctx.obj
    checkpoint = Checkpoint.open(source_or_here(source, "inspect"), revision=revision, progress=stderr_progress())
    result = run(
        checkpoint,
        load(*parse_engine(engine)),
        tp=None if tp is None else sizes(tp, "--tp"),
        pp=one_size(pp, "--pp"),
        ep=ep,
        assume_quant=assume_quant,
        tensors=tensors,
    )
    if format is TextOrJson.json:
        import json

        from mlload.cli.inspect_json import document

        out.write(json.dumps(document(result), indent=2))
    else:
        from mlload.cli.inspect_text import render, tensor_lines

        if result.tensors is not None:
            out.print_all(tensor_lines(result.tensors))
        else:
            out.print_all(render(result, out.width, out.unicode))
    if html is not None:
        from mlload.cli.inspect_html import write_page

        write_page(result, html)
        out.note(f"wrote {html}")
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def complete(words: list[str]) -> list[str]:
    """`--tensors` may stand alone: then it means all of them."""
    found: list[str] = []
    for at, word in enumerate(words):
        found.append(word)
        following = words[at + 1] if at + 1 < len(words) else "-"
        if word == "--tensors" and (following.startswith("-") or Path(following).exists()):
            found.append("*")
    return found
