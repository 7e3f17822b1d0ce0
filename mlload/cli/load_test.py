"""`mlload load-test`: really load a checkpoint, and measure."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.progress import stderr_progress
from mlload.cli import options
from mlload.cli.load_test_words import META, EngineWords, engine_options, load_formats, refuse_for_native
from mlload.cli.output import Output

if TYPE_CHECKING:
    from mlload.engine.settings import Settings

EXAMPLES = """\b
mlload load-test ./llama-70b --tp 8
mlload load-test ./model --load-format safetensors,dummy --weights-only
mlload load-test ./model --record float.json
mlload load-test ./model-awq --expect float.json --max-kl 0.05 --format json
mlload load-test ./model --engine vllm --tp 2 -- --max-model-len 4096
"""

file_out = click.Path(dir_okay=False, path_type=Path)
file_in = click.Path(dir_okay=False, path_type=Path)


@click.command(cls=EngineWords, epilog=EXAMPLES)
@options.source
@engine_options
@click.option("--tp", "-tp", "--tensor-parallel-size", metavar="N", default="1", show_default=True, help="Ranks.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option(
    "--load-format",
    "load_format",
    metavar="F[,F...]",
    default="auto",
    show_default=True,
    help="auto, safetensors, pt, gguf, dummy, mlload_state, sharded_state, tensorizer, runai_streamer, "
    "fastsafetensors, instanttensor; several are shown side by side.",
)
@click.option("--dtype", default="auto", show_default=True, help="auto, bfloat16, float16 or float32.")
@click.option("--kv-cache-dtype", default="auto", show_default=True, help="auto, fp8, fp8_e4m3, fp8_e5m2.")
@click.option("--batch", default="1,8,32", show_default=True, metavar="N[,N...]", help="Batches of the sweep.")
@click.option("--prompt-len", default=512, show_default=True, type=click.IntRange(1), help="Tokens of each prompt.")
@click.option("--decode", default=128, show_default=True, type=click.IntRange(1), help="Tokens to decode.")
@click.option("--cold", is_flag=True, help="Drop the files from the page cache before each load.")
@click.option("--repeat", default=1, show_default=True, type=click.IntRange(1, 1000), help="Loads.")
@click.option("--language-only", is_flag=True, help="Leave vision and audio towers out.")
@click.option("--lazy-towers", is_flag=True, help="Load vision and audio towers last, as their first use would.")
@click.option("--weights-only", is_flag=True, help="Load, and generate nothing.")
@click.option("--max-load-seconds", type=click.FloatRange(0), help="Exit 1 when loading takes longer.")
@click.option("--min-decode-tps", type=click.FloatRange(0), help="Exit 1 when no batch decodes as fast.")
@click.option(
    "--max-peak-gib", type=click.FloatRange(0), help="Exit 1 when a rank's memory (the device's, on a GPU) goes higher."
)
@click.option("--baseline", type=file_in, metavar="FILE", help="An earlier JSON result: exit 1 when 10 % worse.")
@click.option("--record", type=file_out, metavar="FILE", help="Keep log-probabilities of fixed prompts.")
@click.option("--expect", type=file_in, metavar="FILE", help="Compare with what --record kept.")
@click.option(
    "--max-kl", default=0.1, show_default=True, type=click.FloatRange(0), help="Nats that --expect allows, on average."
)
@click.option("--perplexity", type=file_in, metavar="FILE", help="Perplexity of a text, over windows of it.")
@click.option(
    "--windows",
    default=(16, 256),
    show_default=True,
    type=(click.IntRange(1), click.IntRange(2)),
    metavar="N LENGTH",
    help="How many, and of how many tokens.",
)
@click.option("--max-perplexity", type=click.FloatRange(0), help="Exit 1 when it is higher.")
@options.revision
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "junit", "github"]),
    default="text",
    show_default=True,
    help="For people, for programs (a documented schema), for test reports and workflows.",
)
@click.option("--html", type=file_out, metavar="FILE", help="Also write the report as one page.")
@click.pass_context
def command(ctx: click.Context, /, source: str | None, form: str, html: Path | None, **asked: Any) -> None:
    """Really load a checkpoint, and measure.

    Every rank reads its own bytes; weights stay packed. Reports time, bytes, memory predicted against measured,
    pace, kernels, and whether it speaks. Throughput is this harness's: production's comes from the engine itself.

    With --engine vllm a real one is started, with its own flags after "--", and what validate predicts of it is
    shown beside what it does.
    """
    from mlload.cli.load_test_result import against

    out: Output = ctx.obj
    for file in (asked["record"], html):
        refuse_unwritable(file)
    baseline = None if asked["baseline"] is None else read_json(asked["baseline"])
    typed = (name for name in ("prompt_len", "decode") if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE)
    asked["typed"] = tuple(typed)
    documents = run(source, asked, ctx.meta.get(META, ()))
    if not documents:
        return  # another rank of torchrun reports
    if baseline is not None:
        documents[0]["failures"] += against(documents[0], baseline)
    if form == "json":
        out.json(documents[0] if len(documents) == 1 else {**documents[0], "runs": documents})
    elif form == "text":
        from mlload.cli.load_test_text import render, side_by_side

        for one in documents:
            out.print_all(render(one, out.width))
            out.print()
        if len(documents) > 1:
            out.print_all(side_by_side(documents))
    else:
        from mlload.cli.load_test_gate import github, junit

        out.write((junit if form == "junit" else github)(documents))
    if html is not None:
        from mlload.cli.load_test_gate import page

        write(html, page(documents))
        out.note(f"wrote {html}")
    ctx.exit(1 if any(one["failures"] for one in documents) else 0)


def run(typed: str | None, asked: dict[str, Any], words: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """One document for each load format."""
    if asked["engine"].partition("@")[0] == "vllm":
        if asked["perplexity"] is not None:
            raise MlloadError("--perplexity is measured with the native engine", hint="--engine native")
        return run_engine(typed, asked, words)
    if asked["engine"] != "native":
        raise MlloadError(f"unknown engine {asked['engine']!r}; load-test runs native and vllm")
    refuse_for_native(asked, words)
    source = options.source_or_here(typed, "load-test")
    from mlload.cli.load_test_result import Thresholds, document
    from mlload.engine.launch import run_all
    from mlload.engine.record import read_record
    from mlload.engine.settings import Settings

    quiet()
    device = chosen_device(asked["device"])
    thresholds = Thresholds(
        asked["max_load_seconds"],
        asked["min_decode_tps"],
        asked["max_peak_gib"],
        asked["max_kl"],
        asked["max_perplexity"],
    )
    expected = read_record(asked["expect"]) if asked["expect"] is not None else None
    say = Progress()
    documents = []
    formats = load_formats(asked["load_format"])
    if asked["weights_only"] and (asked["record"] or expected or asked["perplexity"]):
        raise MlloadError("--record, --expect and --perplexity run the model, which --weights-only does not")
    if asked["weights_only"] and asked["min_decode_tps"] is not None:
        raise MlloadError("--min-decode-tps judges what the model generates, which --weights-only does not")
    if asked["max_perplexity"] is not None and asked["perplexity"] is None:
        raise MlloadError("--max-perplexity goes with --perplexity FILE")
    if asked["perplexity"] is not None and not asked["perplexity"].is_file():
        raise MlloadError(f"{asked['perplexity']} is no file")
    for load_format in formats:
        settings = Settings(
            source=source,
            revision=asked["revision"],
            tp=options.one_size(asked["tp"], "--tp"),
            ep=asked["ep"],
            device=device,
            load_format=load_format,
            dtype=dtype_of(asked["dtype"]),
            kv_cache_dtype=kv_dtype_of(asked["kv_cache_dtype"]),
            batches=options.sizes(asked["batch"], "--batch"),
            prompt_len=asked["prompt_len"],
            decode=asked["decode"],
            typed=asked["typed"],
            weights_only=asked["weights_only"],
            cold=asked["cold"],
            repeat=asked["repeat"],
            towers=towers_of(asked),
            record=asked["record"] is not None,
            perplexity=str(asked["perplexity"].resolve()) if asked["perplexity"] is not None else "",
            windows=asked["windows"][0],
            window=asked["windows"][1],
        )
        check(settings)
        try:
            ranks = run_all(settings, say, expected)
        finally:
            say.clear()
        if ranks is None:
            return []
        documents.append(document(source, device, ranks, thresholds))
        if asked["record"] is not None:
            write(asked["record"], json.dumps(ranks[0]["record"]))
    return documents


def run_engine(typed: str | None, asked: dict[str, Any], words: tuple[str, ...]) -> list[dict[str, Any]]:
    """A real vLLM, in an environment of its own."""
    from mlload.cli.load_test_vllm import run_vllm

    say = Progress()
    try:
        return run_vllm(typed, asked, words, say)
    finally:
        say.clear()


def refuse_unwritable(file: Path | None) -> None:
    """A file that cannot be written is told before the model is loaded, not after."""
    if file is None:
        return
    folder = file.parent
    if not folder.is_dir():
        raise MlloadError(f"cannot write {file}: there is no folder {folder}")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise MlloadError(f"cannot write {file}: not permitted")


def write(file: Path, text: str) -> None:
    from mlload.cli.report import write_atomically

    try:
        write_atomically(str(file), text)
    except OSError as error:
        raise MlloadError(f"cannot write {file}: {error.strerror}", exit_code=3) from error


def check(settings: Settings) -> None:
    """Wrong usage is told before a process is started."""
    from mlload.loader.registry import get_model_loader

    get_model_loader(settings.load_format)


def towers_of(asked: dict[str, Any]) -> str:
    if asked["language_only"] and asked["lazy_towers"]:
        raise MlloadError("--language-only leaves the towers out, and --lazy-towers loads them: take one")
    return "skip" if asked["language_only"] else "lazy" if asked["lazy_towers"] else "load"


def dtype_of(typed: str) -> str:
    known = {"auto", "bfloat16", "float16", "half", "float32", "float"}
    if typed not in known:
        raise MlloadError(f"--dtype takes auto, bfloat16, float16 or float32, not {typed!r}")
    return {"half": "float16", "float": "float32"}.get(typed, typed)


def kv_dtype_of(typed: str) -> str:
    known = ("auto", "fp8", "fp8_e4m3", "fp8_e5m2")
    if typed not in known:
        raise MlloadError(f"--kv-cache-dtype takes {', '.join(known)}, not {typed!r}")
    return typed


def chosen_device(typed: str) -> str:
    try:
        import torch
    except ImportError as error:
        raise MlloadError("load-test needs torch and transformers", hint="pip install 'mlload[torch]'") from error
    available = torch.cuda.is_available()
    if typed == "cuda" and not available:
        raise MlloadError("--device cuda: torch finds no GPU here", exit_code=3)
    return ("cuda" if available else "cpu") if typed == "auto" else typed


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise MlloadError(f"{path} cannot be read as a result of load-test: {error.strerror}") from error
    except ValueError as error:
        raise MlloadError(f"{path} cannot be read as a result of load-test: {error}") from error
    if not isinstance(found, dict) or "sweep" not in found:
        raise MlloadError(f"{path} is no result of mlload load-test --format json")
    return found


def quiet() -> None:
    """Libraries talk to a terminal of their own accord; this command's output is its own."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class Progress:
    """One line on stderr, rewritten; nothing where nobody would see it."""

    def __init__(self) -> None:
        self.show = stderr_progress()
        self.shown = False

    def __call__(self, line: str) -> None:
        if self.show is not None:
            self.show(line)
            self.shown = True

    def clear(self) -> None:
        if self.shown and self.show is not None:
            self.show("")
            self.shown = False
