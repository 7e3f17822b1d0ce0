"""Arguments and options that several subcommands share, so that their spelling never diverges.

vLLM's own spellings are accepted beside ours: what people have in their scripts works here.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mlload.checkpoint.finding import MlloadError

SourceArg = Annotated[
    str | None,
    typer.Argument(
        metavar="[SOURCE]",
        help="A folder, a .safetensors or .gguf file, org/name[@revision] on the Hub, or a URL such as s3://bucket/path.",
        show_default=False,
    ),
]
SourcesArg = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SOURCE]...", help="One or more checkpoints.", show_default=False),
]
RevisionOpt = Annotated[
    str | None, typer.Option("--revision", metavar="REV", help="Branch, tag or commit of a Hub repository.")
]
TpOpt = Annotated[
    str | None,
    typer.Option("--tp", "-tp", "--tensor-parallel-size", metavar="N[,N...]", help="Tensor-parallel sizes."),
]
PpOpt = Annotated[
    str, typer.Option("--pp", "-pp", "--pipeline-parallel-size", metavar="N[,N...]", help="Pipeline-parallel sizes.")
]
EpOpt = Annotated[
    bool, typer.Option("--ep", "--enable-expert-parallel", help="Experts whole on their rank (expert parallelism).")
]
EngineOpt = Annotated[
    str, typer.Option("--engine", metavar="NAME[@VERSION]", help="The engine that the answer is for.")
]
AssumeQuantOpt = Annotated[
    str | None,
    typer.Option(
        "--assume-quant",
        metavar="SPEC",
        help="Answer for weights that are not there yet: awq:g128, gptq:g32, fp8, fp8:block128, w8a8, mxfp4, nvfp4.",
    ),
]
TrustOpt = Annotated[
    bool, typer.Option("--trust-remote-code", help="Judge as if the engine may run the checkpoint's own code.")
]
OutputOpt = Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Write the report there instead.")]


class TextOrJson(StrEnum):
    text = "text"
    json = "json"


FormatOpt = Annotated[TextOrJson, typer.Option("--format", help="For people, or for programs (a documented schema).")]


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


def source_or_here(source: str | None, command: str) -> str:
    """The source as typed, or "." where the current folder is a checkpoint."""
    if source is not None:
        return source
    here = {path.name for path in Path().iterdir()}
    if "config.json" in here or any(name.endswith((".safetensors", ".gguf")) for name in here):
        return "."
    raise MlloadError(
        "no SOURCE given, and the current folder holds neither a config.json nor weights",
        hint=f"mlload {command} FOLDER, or mlload demo to have something to try",
    )


def capability(gpu: str | None) -> tuple[int, int] | None:
    """ "cc:9.0" -> (9, 0)."""
    if gpu is None:
        return None
    if re.fullmatch(r"cc:[0-9]{1,2}\.[0-9]", gpu, re.IGNORECASE):
        major, _, minor = gpu[3:].partition(".")
        return int(major), int(minor)
    raise MlloadError(f"--gpu takes a compute capability such as cc:9.0 (H100) or cc:8.0 (A100), not {gpu!r}")
