"""Rules about --load-format: whether the loader that was asked for finds what it reads."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mlload.checkpoint.finding import Finding, Hint
from mlload.validators.context import Context
from mlload.validators.rules import rule

RANK_FILE = re.compile(r"model-rank-(\d+)-part-\d+\.safetensors$")
AUTO = Hint("let the engine choose", "--load-format auto")
# Load format -> (endings of the files that it reads, how to call them).
READS: dict[str, tuple[tuple[str, ...], str]] = {
    "safetensors": ((".safetensors",), "safetensors files"),
    "fastsafetensors": ((".safetensors",), "safetensors files"),
    "instanttensor": ((".safetensors",), "safetensors files"),
    "runai_streamer": ((".safetensors",), "safetensors files"),
    "pt": ((".pt", ".bin", ".pth"), "pickled files (.bin, .pt)"),
    "npcache": ((".bin",), "pickled files (.bin)"),
    "tensorizer": ((".tensors",), "a file of tensorizer's"),
}


@rule("LD001", "unknown load format")
def known(context: Context) -> Iterator[Finding]:
    """--load-format names a loader that the engine does not have. Some that older versions had now come with plugins
    (gguf, bitsandbytes)."""
    asked, formats = context.request.load_format, context.plan.profile.load_formats
    if formats and asked not in formats:
        yield Finding(
            "LD001",
            "error",
            "starts",
            f"--load-format {asked}",
            f"{context.plan.profile.label} has no load format {asked!r}; it has {', '.join(formats)}",
            {"load_format": asked},
            (AUTO,),
        )


@rule("LD002", "the load format's files are not there")
def files(context: Context) -> Iterator[Finding]:
    """The loader that was asked for reads one kind of file, and the checkpoint has none of it."""
    asked = context.request.load_format
    names = [file.name for file in context.checkpoint.files]
    if context.model.config_only and not any(name.endswith((".safetensors", ".bin", ".pt")) for name in names):
        return
    if asked == "mistral":
        endings: tuple[str, ...] = ("consolidated.safetensors",)
        what = "consolidated*.safetensors files"
        found = any("consolidated" in name and name.endswith(".safetensors") for name in names)
    elif asked in READS:
        endings, what = READS[asked]
        found = any(name.endswith(endings) for name in names)
    else:
        return
    if not found:
        yield Finding(
            "LD002",
            "error",
            "starts",
            f"--load-format {asked}",
            f"this load format reads {what}, and there are none",
            {"load_format": asked, "endings": list(endings)},
            (AUTO,),
        )


@rule("LD003", "no files for every rank")
def rank_files(context: Context) -> Iterator[Finding]:
    """sharded_state reads model-rank-N-part-*.safetensors, written beforehand for one tensor-parallel size by the
    same engine. Another size, or the files as published, do not load that way."""
    if context.request.load_format not in ("sharded_state", "runai_streamer_sharded"):
        return
    ranks = {int(match[1]) for file in context.checkpoint.files if (match := RANK_FILE.search(file.name))}
    tp = context.plan.mesh.tp
    if ranks == set(range(tp)):
        return
    have = f"files for {len(ranks)} ranks" if ranks else "no files per rank"
    yield Finding(
        "LD003",
        "error",
        "starts",
        f"--load-format {context.request.load_format}",
        f"there are {have} (model-rank-N-part-*.safetensors), and tp {tp} needs {tp}",
        {"ranks": len(ranks), "tp": tp},
        (AUTO, Hint("cut the checkpoint for this size", f"mlload shard SOURCE -o OUT --tp {tp}")),
    )


@rule("LD004", "no weights are read")
def dummy(context: Context) -> Iterator[Finding]:
    """load_format dummy fills the weights with random numbers: good for measuring, its answers are noise."""
    if context.request.load_format == "dummy":
        yield Finding(
            "LD004",
            "warning",
            "right",
            "--load-format dummy",
            "the weights will be random numbers: memory and speed are real, answers are not",
            hints=(AUTO,),
        )
