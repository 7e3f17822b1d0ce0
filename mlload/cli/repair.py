"""`mlload repair`: an index rebuilt from headers, tensors that lie in two files, metadata that is missing."""

from __future__ import annotations

import shlex

import click

from mlload.cli import options
from mlload.cli.output import Output

EXAMPLES = """\b
mlload repair ./llama-70b
mlload repair ./llama-70b --in-place
mlload repair ./llama-70b --index --in-place
"""


@click.command(epilog=EXAMPLES)
@options.source
@click.option("--index", is_flag=True, help="Only the index.")
@click.option("--dedup", is_flag=True, help="Only the weight files: tensors that lie in two of them, metadata.")
@click.option("--in-place", is_flag=True, help="Do it: each file is replaced as a whole.")
@options.text_or_json
@click.pass_context
def command(ctx: click.Context, source: str | None, index: bool, dedup: bool, in_place: bool, form: str) -> None:
    """Make an index and files agree with the tensors that are there.

    Shows what it would do, and does it with --in-place. Exit code 1 while there is something left to do.
    """
    from mlload.checkpoint.checkpoint import Checkpoint
    from mlload.writer.repair import carry_out, plan_repair

    options.answer_once(ctx)
    out: Output = ctx.obj
    checkpoint = Checkpoint.open(options.source_or_here(source, "repair"))
    both = index == dedup
    repair = plan_repair(checkpoint, index=index or both, dedup=dedup or both)
    if in_place and not repair.nothing:
        carry_out(checkpoint, repair)
    if form == "json":
        out.json(
            {
                "schema_version": 1,
                "command": "repair",
                "source": checkpoint.label,
                "actions": list(repair.reasons),
                "rewritten": [rewrite.file for rewrite in repair.rewrites],
                "index": repair.index is not None,
                "done": in_place,
            }
        )
    elif repair.nothing:
        out.print(f"{checkpoint.label}: nothing to repair")
    else:
        out.print(f"{checkpoint.label}: {'repaired' if in_place else 'would repair'}")
        out.print_all(f"  {reason}" for reason in repair.reasons)
        if not in_place:
            asked = "" if both else " --index" if index else " --dedup"
            out.note(f"do it: mlload repair {shlex.quote(checkpoint.label)}{asked} --in-place")
    ctx.exit(0 if in_place or repair.nothing else 1)
