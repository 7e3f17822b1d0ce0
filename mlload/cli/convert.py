"""`mlload convert`: GGUF and .bin files to a Hugging Face folder of safetensors."""

from __future__ import annotations

import click

from mlload.cli import options
from mlload.cli.layout import wrap
from mlload.cli.output import Output

EXAMPLES = """\b
mlload convert model-Q4_K_M.gguf -o ./model
mlload convert model.gguf -o ./model --dtype f16
mlload convert model-Q8_0.gguf -o ./model --keep-quantized
mlload convert ./old-model-with-bin-files -o ./model
"""


@click.command(epilog=EXAMPLES)
@options.source
@click.option("--output", "-o", metavar="OUT", required=True, help="The folder to write.")
@click.option(
    "--dtype",
    type=click.Choice(["bf16", "f16", "f32"]),
    help="What GGUF's numbers become (bf16; f16 with --keep-quantized); a .bin's tensors keep their dtype.",
)
@click.option(
    "--keep-quantized", is_flag=True, help="GGUF's Q4_0, Q5_0 and Q8_0 stay packed, in compressed-tensors' words."
)
@click.option("--max-shard-size", metavar="SIZE", default="5GB", show_default=True, help="No file larger than this.")
@click.option("--no-tokenizer", is_flag=True, help="Leave a GGUF file's vocabulary out.")
@click.option("--verify", is_flag=True, help="Of a .bin: read back what was written and compare hashes.")
@options.revision
@options.text_or_json
@click.pass_context
def command(
    ctx: click.Context,
    source: str | None,
    output: str,
    dtype: str | None,
    keep_quantized: bool,
    max_shard_size: str,
    no_tokenizer: bool,
    verify: bool,
    revision: str | None,
    form: str,
) -> None:
    """Write a GGUF or .bin checkpoint as a Hugging Face folder.

    GGUF blocks are dequantized, or kept where a format of Hugging Face folders says the same; names, row order,
    config, tokenizer and chat template become what the model class expects. A .bin is read without unpickling it.
    """
    from mlload.checkpoint.checkpoint import Checkpoint
    from mlload.checkpoint.sources.progress import stderr_progress
    from mlload.cli.quantities import size
    from mlload.writer.convert import convert
    from mlload.writer.sizes import parse_size

    out: Output = ctx.obj
    progress = stderr_progress()
    checkpoint = Checkpoint.open(options.source_or_here(source, "convert"), revision=revision, progress=progress)
    done = convert(
        checkpoint,
        output,
        dtype=dtype,
        keep=keep_quantized,
        limit=parse_size(max_shard_size, "--max-shard-size"),
        tokenizer=not no_tokenizer,
        verify=verify,
        progress=progress,
    )
    if form == "json":
        out.json(
            {
                "schema_version": 1,
                "command": "convert",
                "source": checkpoint.label,
                "output": output,
                "files": [{"name": name, "bytes": nbytes} for name, nbytes in done.files],
                "carried": list(done.carried),
                "resumed": done.resumed,
            }
        )
        return
    out.print(f"{checkpoint.label}: converted to {output}")
    out.print_all(f"  {name}  {size(nbytes)}" for name, nbytes in done.files)
    if done.carried:
        more = ", ..." if len(done.carried) > 6 else ""
        along = f"{len(done.carried)} other files went along: {', '.join(done.carried[:6])}{more}"
        out.print_all(wrap(along, out.width, "    ", "  "))
    if done.resumed:
        out.print("  went on from an interrupted run")
