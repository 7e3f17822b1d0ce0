"""What is served with a model: adapters, a draft model, another tokenizer or template. As options, and as read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from mlload.checkpoint.finding import MlloadError

if TYPE_CHECKING:
    from mlload.checkpoint.checkpoint import Checkpoint
    from mlload.validators.context import Request

OPTIONS = (
    click.option(
        "--lora",
        "--lora-modules",
        "lora",
        metavar="[NAME=]PATH",
        multiple=True,
        help="An adapter to serve with it; several times for several.",
    ),
    click.option("--enable-lora", is_flag=True, hidden=True),
    click.option("--max-lora-rank", metavar="N", help="Largest rank of an adapter; 16 unless given."),
    click.option(
        "--speculative",
        "--speculative-config",
        "speculative",
        metavar="PATH|JSON",
        help="A draft model, or the engine's own settings of speculative decoding.",
    ),
    click.option("--tokenizer", metavar="NAME", help="Another tokenizer than the one in the files."),
    click.option("--skip-tokenizer-init", is_flag=True, hidden=True),
    click.option("--chat-template", metavar="FILE", help="Another chat template than the one in the files."),
    click.option("--generation-config", metavar="NAME", hidden=True),
    click.option("--limit-mm-per-prompt", metavar="JSON", hidden=True),
    click.option("--language-model-only", is_flag=True, hidden=True),
)
# Those that rules ask for by the engine's name, in `Request.options`.
NAMED = (
    "max_lora_rank",
    "tokenizer",
    "skip_tokenizer_init",
    "chat_template",
    "generation_config",
    "limit_mm_per_prompt",
    "language_model_only",
)
OPENED = "mlload.companions"  # in ctx.meta: what was opened, by how it was typed


def companion_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def with_companions(ctx: click.Context, request: Request, values: Mapping[str, Any]) -> Request:
    """The request with what goes along opened: once a command, however many sources it judges."""
    opened: dict[str, Any] = ctx.meta.setdefault(OPENED, {})
    options = {name.replace("_", "-"): values[name] for name in NAMED if values.get(name)}
    rank = options.get("max-lora-rank")
    if rank is not None and not (str(rank).isascii() and str(rank).isdigit()):
        raise MlloadError(f"--max-lora-rank takes a number such as 32, not {rank!r}")
    speculative = None
    if values.get("speculative"):
        from mlload.validators.speculative_config import parse_speculative

        typed = values["speculative"]
        speculative = opened.get(typed) or opened.setdefault(typed, parse_speculative(typed))
    adapters = tuple(_adapter(path, opened) for typed in values.get("lora") or () for path in _paths(typed))
    return replace(
        request, options={**request.options, **options}, lora=adapters, speculative=speculative or request.speculative
    )


def _adapter(path: str, opened: dict[str, Any]) -> Checkpoint:
    from mlload.checkpoint.checkpoint import Checkpoint

    found = opened.get(f"lora {path}")
    if not isinstance(found, Checkpoint):
        found = opened[f"lora {path}"] = Checkpoint.open(path)
    return found


def _paths(typed: str) -> list[str]:
    """ "PATH", "NAME=PATH", the engine's JSON form {"name", "path"}, or a JSON list of these."""
    if typed.lstrip().startswith(("[", "{")):
        try:
            value = json.loads(typed)
        except (ValueError, RecursionError) as error:
            raise MlloadError(f"--lora is no valid JSON: {str(error)[:120]}") from None
        return [path for entry in (value if isinstance(value, list) else [value]) for path in _entry(entry)]
    return _entry(typed)


def _entry(entry: Any) -> list[str]:
    if isinstance(entry, dict):
        path = entry.get("path") or entry.get("lora_path")
        if not isinstance(path, str) or not path:
            raise MlloadError('--lora as JSON needs a path: {"name": ..., "path": ...}')
        return [path]
    name, equals, path = str(entry).partition("=")
    return [path if equals and path and "/" not in name else str(entry)]


def companion_words(values: Mapping[str, Any]) -> list[str]:
    """The same as flags of the engine, for the line that would start it."""
    words: list[str] = []
    typed = values.get("lora") or ()
    if typed:
        paths = [path for entry in typed for path in _paths(entry)]
        named = [entry for entry in typed if "=" in entry and not entry.lstrip().startswith(("[", "{"))]
        modules = list(typed) if len(named) == len(typed) else [f"lora{n}={path}" for n, path in enumerate(paths, 1)]
        words += ["--enable-lora", "--lora-modules", *modules]
    speculative = values.get("speculative")
    if speculative:
        bare = not speculative.lstrip().startswith("{")
        settings = {"model": speculative, "num_speculative_tokens": 5}
        words += ["--speculative-config", json.dumps(settings) if bare else speculative]
    for name in NAMED:
        value = values.get(name)
        if value:
            words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return words
