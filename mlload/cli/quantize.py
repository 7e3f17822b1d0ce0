"""`mlload quantize`: a smaller checkpoint, in bounded memory, that engines load with no flags."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from mlload.checkpoint.finding import MlloadError
from mlload.cli import options
from mlload.cli.output import Output

EXAMPLES = """\b
mlload quantize ./llama-8b --method awq
mlload quantize ./llama-8b -o ./small --method gptq --group-size 64 --calib text.txt
mlload quantize ./llama-8b --method fp8 --tp 4
mlload quantize ./llama-8b --method rtn --bits 8 --dry-run
"""


@click.command(epilog=EXAMPLES)
@options.source
@click.option("--output", "-o", metavar="OUT", help="The folder to write [default: SOURCE-METHOD, beside it].")
@click.option(
    "--method",
    type=click.Choice(["awq", "gptq", "rtn", "fp8", "int8", "mxfp4", "nvfp4"]),
    required=True,
    help="awq and gptq look at calibration data; the others at the weights alone, unless a scheme says else.",
)
@click.option("--scheme", metavar="NAME", help="W4A16, W4A16_ASYM, W8A16, W8A8, FP8, FP8_STATIC, NVFP4, ...")
@click.option("--bits", type=int, help="Of an integer weight: 4 or 8.")
@click.option("--group-size", type=int, help="Weights that share a scale: 32, 64, 128, or -1 for a whole row.")
@click.option("--sym/--asym", "symmetric", default=None, help="Without or with zero points.")
@click.option(
    "--clip/--no-clip", default=None, help="Search the ranges that lose least [default: on, but for rtn --asym]."
)
@click.option("--act-order/--no-act-order", default=True, help="GPTQ: columns that matter first [default: on].")
@click.option(
    "--smooth",
    type=float,
    metavar="ALPHA",
    help="int8: SmoothQuant; 0.5 shares the difficulty between activations and weights.",
)
@click.option("--kv-cache-scheme", type=click.Choice(["fp8"]), help="Calibrated scales for a KV cache of fp8.")
@click.option(
    "--sequential/--no-sequential",
    default=None,
    help="Calibrate through the quantized layers or the original ones [default: original].",
)
@click.option(
    "--backend",
    type=click.Choice(["mlload", "autoawq"]),
    default="mlload",
    show_default=True,
    help="Whose AWQ; autoawq needs mlload[autoawq] and the whole model in memory.",
)
@click.option("--save-as", type=click.Choice(["awq", "gptq", "compressed-tensors", "fp8"]), help="Whose layout.")
@click.option("--ignore", multiple=True, metavar="PATTERN", help="Leave these layers as they are; a glob, or re:REGEX.")
@click.option("--override", multiple=True, metavar="PATTERN=bits:8", help="Another width or group for some layers.")
@click.option(
    "--calib",
    default="builtin",
    show_default=True,
    metavar="builtin|FILE|hf:NAME[:SPLIT]",
    help="Text: .txt, .jsonl, or a dataset of the Hub.",
)
@click.option("--samples", type=click.IntRange(1), default=128, show_default=True, help="Of calibration text.")
@click.option("--seq-len", type=click.IntRange(8), default=512, show_default=True, help="Tokens of each.")
@click.option("--seed", type=int, default=0, show_default=True, help="Which samples are drawn.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where layers run that look at data; auto takes a GPU that torch sees.",
)
@click.option("--eval-samples", type=click.IntRange(0), default=0, help="Chunks for perplexity before and after.")
@options.tp
@click.option(
    "--pad-intermediate",
    type=click.Choice(["no", "auto"]),
    default="no",
    show_default=True,
    help="auto: MLPs wider by zeros, where groups or --tp do not divide them.",
)
@click.option("--max-shard-size", metavar="SIZE", default="5GB", show_default=True, help="No file larger than this.")
@click.option("--max-memory", metavar="SIZE", help="Work with less at once, or refuse; samples lie on the disk.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted run.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and what it takes.")
@click.option("--no-check", is_flag=True, help="Do not read everything back at the end.")
@click.option("--report", metavar="FILE", help="Where the report goes [default: OUT.quantize.json and .md].")
@options.revision
@options.text_or_json
@click.pass_context
def command(ctx: click.Context, /, source: str | None, form: str, **values: Any) -> None:
    """Quantize the linear layers of a checkpoint.

    Everything else goes along untouched: routers, output head, embeddings, norms and towers. The
    output appears when it is complete; an interrupted run goes on with --resume. Afterwards every layer is read back
    and compared.
    """
    from mlload.checkpoint.checkpoint import Checkpoint
    from mlload.checkpoint.sources.progress import stderr_progress
    from mlload.cli.quantize_idle import refuse_idle
    from mlload.quantize.recipe import make_recipe
    from mlload.quantize.report import refuse_unwritable

    options.answer_once(ctx)
    out: Output = ctx.obj
    recipe = make_recipe(
        values["method"],
        scheme=values["scheme"],
        bits=values["bits"],
        group_size=values["group_size"],
        symmetric=values["symmetric"],
        save_as=values["save_as"],
        ignore=tuple(values["ignore"]),
        overrides=tuple(values["override"]),
        clip=values["clip"],
        backend=values["backend"],
        smooth=values["smooth"],
        kv_cache=values["kv_cache_scheme"] is not None,
        sequential=values["sequential"],
    )
    typed = {name for name in values if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    refuse_idle(recipe, typed, evaluated=values["eval_samples"] > 0)
    if values["report"] is not None:
        refuse_unwritable(values["report"])
    progress = stderr_progress()
    checkpoint = Checkpoint.open(
        options.source_or_here(source, "quantize"), revision=values["revision"], progress=progress
    )
    out.kept.append(checkpoint)
    result, reports = quantized(checkpoint, recipe, values, progress, None if form == "json" else out.note)
    if form == "json":
        out.json(result.as_json())
    else:
        from mlload.cli.quantize_text import render

        out.print_all(render(result, reports, out.width))
    ctx.exit(result.exit_code)


def quantized(checkpoint: Any, recipe: Any, values: dict[str, Any], progress: Any, say: Any) -> tuple[Any, Any]:
    """The run, and the names of its reports (None for a dry run)."""
    from mlload.quantize.report import write_reports
    from mlload.quantize.request import data_words
    from mlload.quantize.run import Options, run
    from mlload.writer.sizes import parse_size

    output = values["output"] or default_output(checkpoint.label, values["method"])
    sizes = (1,) if values["tp"] is None else tuple(options.sizes(values["tp"], "--tp"))
    data, read = "", None
    if recipe.calibrated or values["eval_samples"]:
        text = (values["calib"], values["samples"], values["seq_len"], values["seed"], values["act_order"])
        data, read = data_words(*text), partial(calibration, checkpoint, values["device"], *text)
    result = run(
        checkpoint,
        recipe,
        Options(
            output=output,
            tp=sizes,
            limit=parse_size(values["max_shard_size"], "--max-shard-size"),
            memory=None if values["max_memory"] is None else parse_size(values["max_memory"], "--max-memory"),
            resume=values["resume"],
            dry_run=values["dry_run"],
            checked=not values["no_check"],
            read=read,
            data=data,
            evaluate=values["eval_samples"],
            pad=values["pad_intermediate"] == "auto",
        ),
        progress=progress,
        say=say,
    )
    reports = None
    if result.written:
        reports = write_reports(result, values["report"] or f"{output.rstrip('/')}.quantize")
    return result, reports


def calibration(checkpoint: Any, device: str, text: str, samples: int, length: int, seed: int, act_order: bool) -> Any:
    from mlload.engine.calibrate_text import read_calibration

    return read_calibration(checkpoint, text, samples, length, seed, act_order, chosen_device(device))


def chosen_device(typed: str) -> str:
    if typed == "cpu":
        return typed
    import torch

    available = torch.cuda.is_available()
    if typed == "cuda" and not available:
        raise MlloadError("--device cuda: torch finds no GPU here", hint="--device cpu", exit_code=3)
    return "cuda" if available else "cpu"


def default_output(label: str, method: str) -> str:
    """`llama-8b` -> `llama-8b-awq` beside it; a model of the Hub lands in the current folder."""
    plain = label.rstrip("/")
    if os.path.isdir(plain):
        return f"{os.path.abspath(plain) if plain in ('.', '..') else os.path.normpath(plain)}-{method}"
    return f"{os.path.basename(plain.split('@')[0])}-{method}"
