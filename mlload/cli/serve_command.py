"""A click command that understands the engine's own command line beside its own options.

`mlload validate MODEL -tp 8 --enforce_eager` and `mlload validate -- vllm serve MODEL -tp 8` are the same question.
What is an option of ours too is judged; what only the engine knows is kept, and listed as not judged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from mlload.checkpoint.finding import MlloadError
from mlload.gate.settings import Settings, check_names, find_settings

if TYPE_CHECKING:
    from mlload.profiles.serve_flags import FlagTable
    from mlload.profiles.serve_line import ServeLine
    from mlload.profiles.serve_words import Given

CONFIG = "--serve-config"
META = "mlload.asked"
# Variables of the engine that are judged.
PARTITION = "VLLM_PP_LAYER_PARTITION"
ALLOW_LONG = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a command line says beyond the values of our own options; kept in `ctx.meta`.

    line:       the engine's command that was given, with what was typed outside of it; None without one
    extra:      words of the engine's flags that were typed among our own
    not_judged: the engine's flags and variables that nothing was judged by
    """

    settings: Settings
    line: ServeLine | None
    extra: tuple[str, ...]
    not_judged: tuple[str, ...]


class ServeCommand(click.Command):
    """own: names of parameters that are ours alone, and no flags of the engine"""

    def __init__(self, *args: Any, own: Iterable[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.own = frozenset(own)

    @property
    def spellings(self) -> dict[str, click.Option]:
        options = [param for param in self.params if isinstance(param, click.Option)]
        return {spelling: param for param in options for spelling in (*param.opts, *param.secondary_opts)}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        settings = find_settings()
        ctx.default_map = {**(ctx.default_map or {}), **self.defaults(settings)}
        typed, after = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        known = self.spellings
        ours, foreign, config = split(typed, known)
        given: list[Given] = []
        line: ServeLine | None = None
        if after or config is not None or any(isinstance(piece, Foreign) for piece in foreign):
            table = self.table(ours, ctx.default_map)
            ours, given = resolve(foreign, table)
            line = read_after(after, table)
            if after and line is None:
                ours += after
            if config is None and line is not None:
                config = line.value("config")
            if config is not None:
                line = with_file(line, config, table)
        stated = [*(line.given if line is not None else ()), *given]
        full = None if line is None else self.with_ours(line, ours, given)
        extra = tuple(word for entry in given if f"--{entry.name}" not in known for word in entry.words)
        ctx.meta[META] = Asked(settings, full, extra, tuple(self.unjudged(line, stated)))
        words = [word for entry in stated for word in as_ours(entry, known)]
        rest = super().parse_args(ctx, words + ours)
        if line is not None and line.source is not None and not ctx.params.get("sources"):
            ctx.params["sources"] = (line.source,)
        return rest

    def defaults(self, settings: Settings) -> dict[str, Any]:
        """Settings as defaults of options; a list is "a,b" for an option that is given once."""
        params = {param.name: param for param in self.params if param.name and isinstance(param, click.Option)}
        for options in (settings.options, *(options for _, options in settings.overrides)):
            check_names(options, params, settings.path)
        return {name: as_text(value, params[name]) for name, value in settings.options.items()}

    def table(self, ours: Sequence[str], defaults: Any) -> FlagTable:
        """Flags of the engine that the answer is for: needed before the options are parsed."""
        from mlload.profiles import load, parse_engine
        from mlload.profiles.serve_flags import flag_table

        engine = str(defaults.get("engine", "vllm"))
        for at, word in enumerate(ours):
            name, equals, value = word.partition("=")
            if name == "--engine":
                engine = value if equals else ours[at + 1] if at + 1 < len(ours) else engine
        return flag_table(load(*parse_engine(engine.rsplit(",", 1)[-1])))

    def with_ours(self, line: ServeLine, ours: Sequence[str], given: Sequence[Given]) -> ServeLine:
        """The engine's command with the flags that were typed outside of it, which win."""
        from dataclasses import replace

        from mlload.profiles.serve_line import SIZES
        from mlload.profiles.serve_words import Given

        extra = list(given)
        known = self.spellings
        at = 0
        while at < len(ours):
            name, equals, value = ours[at].partition("=")
            param = known.get(name)
            if param is not None and not param.is_flag and not equals and at + 1 < len(ours):
                at += 1
                value = ours[at]
            at += 1
            if param is not None and param.name not in self.own and (long := engine_name(param)) not in SIZES:
                words = (f"--{long}",) if param.is_flag else (f"--{long}", value)
                extra.append(Given(long, words, True if param.is_flag else value))
        replaced = {entry.name for entry in extra}
        return replace(line, given=(*(entry for entry in line.given if entry.name not in replaced), *extra))

    def unjudged(self, line: ServeLine | None, stated: Sequence[Given]) -> Iterator[str]:
        """Flags that no option of ours stands for, as typed, and variables of the engine."""
        known = self.spellings
        said: set[str] = set()
        for entry in stated:
            if entry.known and entry.name not in ("model", "config") and f"--{entry.name}" not in known:
                text = " ".join(entry.words) if entry.words else stated_in_file(entry)
                if text not in said:
                    said.add(text)
                    yield text
        for name, value in line.variables if line is not None else ():
            if name not in (PARTITION, ALLOW_LONG):
                yield f"{name}={value}"


@dataclass(frozen=True, slots=True)
class Foreign:
    """Words that are none of ours, from one flag to the next."""

    words: tuple[str, ...]


def split(typed: Sequence[str], known: dict[str, click.Option]) -> tuple[list[str], list[str | Foreign], str | None]:
    """Our own words with dashes for underscores, all words with the others marked, and the YAML file if there is
    one."""
    ours: list[str] = []
    pieces: list[str | Foreign] = []
    config: str | None = None
    at = 0
    while at < len(typed):
        word = typed[at]
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            name = name.replace("_", "-")
        param = known.get(CONFIG if name == "--config" else name)
        taken = 1
        if param is None and word.startswith("-") and len(word) > 1 and name not in ("-h", "--help"):
            while at + taken < len(typed) and not typed[at + taken].startswith("-"):
                taken += 1
            pieces.append(Foreign(tuple(typed[at : at + taken])))
        elif param is not None and CONFIG in param.opts:
            taken = 1 if equals else 2
            config = value if equals else typed[at + 1] if at + 1 < len(typed) else ""
        else:
            words = [name + equals + value if param is not None else word]
            if param is not None and not param.is_flag and not equals and at + 1 < len(typed):
                taken = 2
                words.append(typed[at + 1])
            ours += words
            pieces += words
        at += taken
    return ours, pieces, config


def resolve(pieces: Sequence[str | Foreign], table: FlagTable) -> tuple[list[str], list[Given]]:
    """Words that are none of ours, read as the engine would; what it does not know either is left for the parser."""
    from mlload.profiles.serve_words import merged, read_one

    ours: list[str] = []
    given: list[Given] = []
    for piece in pieces:
        if isinstance(piece, str):
            ours.append(piece)
            continue
        taken, entry, problem = read_one(piece.words, 0, table)
        if entry is None or not entry.known:
            ours += piece.words
            continue
        if problem is not None:
            raise MlloadError(problem.message)
        given.append(entry)
        ours += piece.words[taken:]
    return ours, list(merged(given))


def read_after(after: Sequence[str], table: FlagTable) -> ServeLine | None:
    """The command after "--"; None where there are only names there, as other commands write it."""
    from mlload.profiles.serve_line import read_line

    if not after:
        return None
    try:
        return read_line(after, table)
    except MlloadError:
        if any(word.startswith("-") or (" " in word and not os.path.exists(word)) for word in after):
            raise
        return None


def with_file(line: ServeLine | None, config: str, table: FlagTable) -> ServeLine:
    from mlload.profiles.serve_config import words_of_config
    from mlload.profiles.serve_line import ServeLine, with_config
    from mlload.profiles.serve_words import read_words

    read = read_words(words_of_config(config, table), table)
    model = next((entry.value for entry in reversed(read.given) if entry.name == "model"), None)
    base = line if line is not None else ServeLine(("vllm", "serve", "--config", config), None, None)
    return with_config(base, read.given, read.findings, model)


def as_ours(entry: Given, known: dict[str, click.Option]) -> list[str]:
    """A flag of the engine as words of ours; none where no option of ours stands for it, or it has no value."""
    spelling = f"--{entry.name}"
    param = known.get(spelling)
    if param is None or entry.value in (None, "None"):  # the engine reads the word None as nothing
        return []
    if param.is_flag:
        off = f"--no-{entry.name}"
        return [spelling] if entry.value else [off] if off in known else []
    text = json.dumps(entry.value) if isinstance(entry.value, dict | list) else str(entry.value)
    return [f"{spelling}={text}"]


def stated_in_file(entry: Given) -> str:
    """A flag of a config file as it would be typed."""
    if isinstance(entry.value, bool):
        return f"--{entry.name}" if entry.value else f"--no-{entry.name}"
    if isinstance(entry.value, list):
        return " ".join([f"--{entry.name}", *map(str, entry.value)])
    return f"--{entry.name} {json.dumps(entry.value) if isinstance(entry.value, dict) else entry.value}"


def engine_name(param: click.Option) -> str:
    """The engine's own name of an option: its longest spelling."""
    return max(param.opts, key=len).lstrip("-")


def as_text(value: Any, param: click.Option) -> Any:
    if isinstance(value, list) and not param.multiple:
        return ",".join(map(str, value))
    if param.multiple and not isinstance(value, list):
        return [str(value)]
    if param.multiple:
        return [str(item) for item in value]
    return json.dumps(value) if isinstance(value, dict) else value
