"""`mlload shard`: a checkpoint cut per rank, in files of another size, or merged again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mlload.checkpoint.finding import MlloadError
from mlload.cli import options
from mlload.cli.output import Output

if TYPE_CHECKING:
    from mlload.checkpoint.checkpoint import Checkpoint

EXAMPLES = """\b
mlload shard ./llama-70b -o ./llama-70b-tp8 --tp 8
mlload shard ./llama-8b -o ./llama-8b-vllm --tp 2 --layout vllm
mlload shard ./llama-8b -o ./llama-8b-tzr --tp 2 --layout tensorizer
mlload shard ./llama-70b -o ./llama-70b-5gb --max-shard-size 5GB
mlload shard ./llama-70b-tp8 -o ./again --merge
mlload shard ./llama-70b --tp 8 --dry-run
"""


@click.command(epilog=EXAMPLES)
@options.source
@click.option("--output", "-o", metavar="OUT", help="The folder to write; it appears when it is complete.")
@options.tp
@options.one_pp
@options.ep
@click.option(
    "--layout",
    type=click.Choice(["mlload", "vllm", "tensorizer"]),
    default="mlload",
    show_default=True,
    help="Checkpoint names cut per rank, vLLM's sharded_state, or tensorizer files with vLLM's names.",
)
@click.option("--max-shard-size", metavar="SIZE", help="No file larger than this (5GB, 500MB, 2GiB).")
@click.option("--merge", is_flag=True, help="Ranks or scattered files become one checkpoint.")
@click.option("--verify", is_flag=True, help="Read back what was written and compare hashes.")
@click.option("--dry-run", is_flag=True, help="Show what would be written, and write nothing.")
@options.engine
@options.revision
@options.text_or_json
@click.pass_context
def command(
    ctx: click.Context,
    source: str | None,
    output: str | None,
    tp: str | None,
    pp: str,
    ep: bool,
    layout: str,
    max_shard_size: str | None,
    merge: bool,
    verify: bool,
    dry_run: bool,
    engine: str,
    revision: str | None,
    form: str,
) -> None:
    """Cut a checkpoint per rank, resize its files, or merge ranks.

    Bytes are copied as they are, quantized or not; nothing is overwritten, and an interrupted run goes on where it
    stopped. SOURCE may be a folder of ranks that this command wrote.
    """
    from mlload.checkpoint.checkpoint import Checkpoint
    from mlload.checkpoint.sources.progress import stderr_progress
    from mlload.cli import shard_result

    options.answer_once(ctx)
    out: Output = ctx.obj
    sizes = {"tp": options.one_size(tp or "1", "--tp"), "pp": options.one_size(pp, "--pp")}
    ranked = tp is not None or sizes["pp"] > 1 or ep or layout != "mlload"
    if merge and ranked:
        raise MlloadError("--merge makes one checkpoint: it goes without --tp, --pp, --ep and --layout")
    if not (ranked or merge or max_shard_size):
        raise MlloadError(
            "say what to make: --tp N for ranks, --max-shard-size SIZE for files of another size, or --merge"
        )
    if layout == "tensorizer" and max_shard_size:
        raise MlloadError("--layout tensorizer is one file for each rank: it goes without --max-shard-size")
    if output is None and not dry_run:
        raise MlloadError("-o OUT says where to write; --dry-run shows what would be written")
    progress = stderr_progress()
    checkpoint: Checkpoint = Checkpoint.open(
        options.source_or_here(source, "shard"), revision=revision, progress=progress
    )
    out.kept.append(checkpoint)
    request = shard_result.Request(
        output=output,
        tp=sizes["tp"],
        pp=sizes["pp"],
        ep=ep,
        ranked=ranked,
        layout=layout,
        max_shard_size=max_shard_size,
        merge=merge,
        verify=verify,
        dry_run=dry_run,
        engine=engine,
    )
    try:
        result = shard_result.run(checkpoint, request, progress=progress)
    except KeyboardInterrupt:
        out.note("what was written so far stays beside; the same command goes on from there")
        raise
    _show(out, result, form)


def _show(out: Output, result: Any, form: str) -> None:
    if form == "json":
        out.json(result.as_json())
        return
    out.print_all(result.lines(out.width))
