"""Rules about --load-format: whether the loader that was asked for finds what it reads."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from mlload.checkpoint.checkpoint import Cut
from mlload.checkpoint.finding import Finding, Hint
from mlload.plan.mesh import Mesh
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
# Load format -> layout of ranks that it reads.
READS_RANKS = {
    "sharded_state": "sharded_state",
    "runai_streamer_sharded": "sharded_state",
    "tensorizer": "tensorizer",
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
    if context.checkpoint.cut is not None:
        return  # LD005 tells
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
    """Files per rank hold what each rank of one size has: sharded_state reads model-rank-N-part-*.safetensors,
    tensorizer model-rank-N.tensors. Another size, or the files as published, do not load that way: no loader of the
    engine puts ranks together or cuts them again."""
    asked, mesh, cut = context.request.load_format, context.plan.mesh, context.checkpoint.cut
    reads = READS_RANKS.get(asked)
    if reads is None or (cut is None and reads == "tensorizer"):
        return
    where = f"--load-format {asked}"
    if cut is None:
        ranks = {int(match[1]) for file in context.checkpoint.files if (match := RANK_FILE.search(file.name))}
        if ranks != set(range(mesh.tp)):
            have = f"files for {len(ranks)} ranks" if ranks else "no files per rank"
            yield Finding(
                "LD003",
                "error",
                "starts",
                where,
                f"there are {have} (model-rank-N-part-*.safetensors), and tp {mesh.tp} needs {mesh.tp}",
                {"ranks": len(ranks), "tp": mesh.tp},
                (AUTO, Hint("cut the checkpoint for this size", cut_command(context, "vllm"))),
            )
        return
    if cut.layout != reads or _same_size(context, cut):
        return
    have_size, wanted = size_of(cut), mesh._replace(dp=1, ep=mesh.ep and cut.ep is not None).label()
    yield Finding(
        "LD003",
        "error",
        "starts",
        where,
        f"the files are those of the ranks of {have_size}, and {wanted} needs others: they load at that size alone",
        {"ranks": cut.tp * cut.pp, "tp": mesh.tp},
        (
            Hint(f"start it at {have_size}", " ".join(_flags(cut))),
            Hint("cut it again for this size", cut_command(context, cut.layout)),
        ),
    )


@rule("LD005", "a folder of ranks")
def ranks_and_loader(context: Context) -> Iterator[Finding]:
    """The folder holds what the ranks of one size hold, as `mlload shard --tp` writes it, in place of a checkpoint.
    vLLM reads the layouts `vllm` and `tensorizer` with the load format of that name only (--load-format
    sharded_state, --load-format tensorizer), at that size; its other loaders look for the names of the checkpoint,
    which these files do not have. The layout `mlload` keeps those names and is read by mlload alone: it is for
    load-test, for moving ranks to their machines, and for cutting again; `mlload shard --merge` makes the checkpoint
    of it that engines read."""
    cut, asked, engine = context.checkpoint.cut, context.request.load_format, context.plan.profile.engine
    if cut is None or engine == "native":
        return
    if engine == "vllm" and (READS_RANKS.get(asked) == cut.layout or asked == "dummy"):
        return
    hints: tuple[Hint, ...]
    merge = Hint("Make one checkpoint of it.", f"mlload shard {shlex.quote(context.checkpoint.label)} -o OUT --merge")
    if engine != "vllm" or cut.layout == "mlload":
        what = "in mlload's own layout, which no engine reads" if cut.layout == "mlload" else "under vLLM's own names"
        message, hints = f"the folder holds the ranks of {size_of(cut)} {what}.", (merge,)
    else:
        message = (
            f"the folder holds the ranks of {size_of(cut)} under vLLM's own names: --load-format {cut.layout} reads "
            f"them, at that size, and --load-format {asked} does not."
        )
        hints = (Hint(f"Start it at {size_of(cut)}.", " ".join([f"--load-format {cut.layout}", *_flags(cut)])), merge)
    numbers = {"layout": cut.layout, "tp": cut.tp, "pp": cut.pp}
    yield Finding("LD005", "error", "starts", context.checkpoint.label, message, numbers, hints)


@rule("LD006", "ranks that do not belong together")
def ranks_as_said(context: Context) -> Iterator[Finding]:
    """The files of the ranks are not what config.json, or the manifest beside them, says: a rank is missing or of
    another checkpoint, a file was replaced, or vLLM saved them after its kernels had repacked the weights. vLLM's
    loader only warns where a shape differs and copies what fits. Cut the original again."""
    cut = context.checkpoint.cut
    if cut is not None and cut.fault:
        label = context.checkpoint.label
        message = cut.fault.removeprefix(f"{label}: ")
        if message.startswith(f"{label} "):
            message = "the folder" + message.removeprefix(label)
        hint = Hint("Cut the original again.", "mlload shard ORIGINAL -o OUT --tp N", "original weights")
        yield Finding("LD006", "error", "starts", context.checkpoint.label, message, {"tp": cut.tp}, (hint,))


def size_of(cut: Cut) -> str:
    return Mesh(cut.tp, cut.pp, bool(cut.ep)).label()


def _flags(cut: Cut) -> list[str]:
    pairs = (("--tensor-parallel-size", cut.tp), ("--pipeline-parallel-size", cut.pp))
    return [f"{flag} {size}" for flag, size in pairs if size > 1] + ["--enable-expert-parallel"] * bool(cut.ep)


def _same_size(context: Context, cut: Cut) -> bool:
    mesh = context.plan.mesh
    dealt = any(param.expert_total for param in context.model.params) and mesh.tp > 1
    return (mesh.tp, mesh.pp) == (cut.tp, cut.pp) and (cut.ep in (None, mesh.ep) or not dealt)


def cut_command(context: Context, layout: str) -> str:
    """What writes files for the size that was asked for: from a folder of ranks, or from a checkpoint."""
    mesh = context.plan.mesh
    sizes = f"--tp {mesh.tp}" + (f" --pp {mesh.pp}" if mesh.pp > 1 else "") + (" --ep" if mesh.ep else "")
    name = "vllm" if layout == "sharded_state" else layout
    return f"mlload shard {shlex.quote(context.checkpoint.label)} -o OUT {sizes} --layout {name}"


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
