"""`mlload inspect`: what is this checkpoint, and what would each rank hold."""

from __future__ import annotations

from pathlib import Path

import click

from mlload.cli import options
from mlload.cli.output import Output

EXAMPLES = """\b
mlload inspect ./llama-70b
mlload inspect org/name --tp 8 --format json
mlload inspect ./llama-70b --tensors '*layers.0.*'
mlload inspect ./llama-70b --assume-quant awq:g128 --html page.html
"""


@click.command(epilog=EXAMPLES)
@options.source
@options.tp
@options.one_pp
@options.ep
@click.option(
    "--tensors",
    metavar="[GLOB]",
    is_flag=False,
    flag_value="*",
    help="List tensors with role, shape, dtype, cut and file.",
)
@options.assume_quant
@options.engine
@options.revision
@options.text_or_json
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write one self-contained page with pictures.",
)
@click.pass_context
def command(
    ctx: click.Context,
    source: str | None,
    tp: str | None,
    pp: str,
    ep: bool,
    tensors: str | None,
    assume_quant: str | None,
    engine: str,
    revision: str | None,
    form: str,
    html: Path | None,
) -> None:
    """What a checkpoint is, and what each rank would hold.

    Architecture, quantization, files, bytes, memory per rank, problems. Reads headers and small files only: of
    a remote source no weights are downloaded.
    """
    from mlload.checkpoint.checkpoint import Checkpoint
    from mlload.checkpoint.sources.progress import stderr_progress
    from mlload.cli.inspect_result import run
    from mlload.profiles import load, parse_engine

    options.answer_once(ctx)
    out: Output = ctx.obj
    if source is None and tensors is not None and Path(tensors).exists():
        source, tensors = tensors, "*"  # `inspect --tensors FOLDER`
    checkpoint = Checkpoint.open(
        options.source_or_here(source, "inspect"), revision=revision, progress=stderr_progress()
    )
    out.kept.append(checkpoint)
    result = run(
        checkpoint,
        load(*parse_engine(engine)),
        tp=None if tp is None else options.sizes(tp, "--tp"),
        pp=options.one_size(pp, "--pp"),
        ep=ep,
        assume_quant=assume_quant,
        tensors=tensors,
    )
    if form == "json":
        from mlload.cli.inspect_json import document

        out.json(document(result))
    else:
        from mlload.cli.inspect_text import render, tensor_lines

        if result.tensors is not None:
            if result.tensors:
                out.print_all(tensor_lines(result.tensors))
            else:
                out.print(f"no tensor is called like {tensors}")
        else:
            out.print_all(render(result, out.width, out.unicode))
    if html is not None:
        from mlload.cli.inspect_html import write_page

        write_page(result, html)
        out.note(f"wrote {html}")
    ctx.exit(result.exit_code)
