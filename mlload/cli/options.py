"""Arguments and options that several subcommands share, so that their spelling never diverges.

vLLM's own spellings are accepted beside ours: what people have in their scripts works here.
"""

from __future__ import annotations

import gc
from pathlib import Path

import click

from mlload.checkpoint.finding import MlloadError

source = click.argument("source", required=False)
sources = click.argument("sources", nargs=-1, metavar="[SOURCE]...")
revision = click.option("--revision", metavar="REV", help="Branch, tag or commit of a Hub repository.")
tp = click.option("--tp", "-tp", "--tensor-parallel-size", metavar="N[,N...]", help="Tensor-parallel sizes.")
pp = click.option(
    "--pp",
    "-pp",
    "--pipeline-parallel-size",
    metavar="N[,N...]",
    default="1",
    show_default=True,
    help="Pipeline-parallel sizes.",
)
one_pp = click.option(
    "--pp", "-pp", "--pipeline-parallel-size", metavar="N", default="1", show_default=True, help="Pipeline stages."
)
ep = click.option(
    "--ep", "--enable-expert-parallel", is_flag=True, help="Experts whole on their rank (expert parallelism)."
)
dp = click.option(
    "--dp", "-dp", "--data-parallel-size", metavar="N", default="1", show_default=True, help="Data-parallel replicas."
)
engine = click.option(
    "--engine",
    metavar="NAME[@VERSION]",
    default="vllm",
    show_default=True,
    help="The engine that the answer is for.",
)
assume_quant = click.option(
    "--assume-quant",
    metavar="SPEC",
    help="Answer for weights that are not there yet: awq:g128, gptq:g32, fp8, fp8:block128, w8a8, mxfp4, nvfp4.",
)
text_or_json = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people, or for programs (a documented schema).",
)
report_format = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sarif", "junit", "github", "markdown"]),
    default="text",
    show_default=True,
    help="For people; for programs (a documented schema); for code scanning, test reports, workflows, reviews.",
)


def sizes(text: str, option: str) -> tuple[int, ...]:
    """ "1,2,4,8" -> (1, 2, 4, 8), in the order typed, each once."""
    found: list[int] = []
    for word in text.split(","):
        if not word.strip().isascii() or not word.strip().isdigit() or not 1 <= int(word) <= 65536:
            raise MlloadError(f"{option} takes sizes of 1 or more such as 8 or 1,2,4,8, not {text!r}")
        if int(word) not in found:
            found.append(int(word))
    return tuple(found)


def one_size(text: str, option: str) -> int:
    """Where a list makes no sense."""
    found = sizes(text, option)
    if len(found) > 1:
        raise MlloadError(f"{option} takes one size here, not {text!r}")
    return found[0]


def source_or_here(typed: str | None, command: str) -> str:
    """The source as typed, or "." where the current folder is a checkpoint."""
    if typed is not None:
        return typed
    here = {path.name for path in Path().iterdir()}
    if "config.json" in here or any(name.endswith((".safetensors", ".gguf")) for name in here):
        return "."
    raise MlloadError(
        "no SOURCE given, and the current folder holds neither a config.json nor weights",
        hint=f"mlload {command} FOLDER, or mlload demo to have something to try",
    )


def answer_once(ctx: click.Context) -> None:
    """No garbage collection until the command ends: it would only walk 100,000 tensors that are all in use."""
    if gc.isenabled():
        gc.disable()
        ctx.call_on_close(gc.enable)
