"""What `mlload load-test` is told about the engine behind it, and the engine's own words after "--"."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlload.checkpoint.finding import Finding, MlloadError
from mlload.cli import options

if TYPE_CHECKING:
    from mlload.plan.mesh import Mesh
    from mlload.profiles.serve_flags import FlagTable
    from mlload.profiles.serve_line import ServeLine
    from mlload.validators.context import Request

META = "mlload.engine_words"
# Options of load-test that stand for a flag of the engine, with what they are when nobody gave them.
PASSED_ON = (
    ("tp", "tensor-parallel-size", "1"),
    ("pp", "pipeline-parallel-size", "1"),
    ("ep", "enable-expert-parallel", False),
    ("dtype", "dtype", "auto"),
    ("kv_cache_dtype", "kv-cache-dtype", "auto"),
    ("load_format", "load-format", "auto"),
    ("revision", "revision", None),
)


class EngineWords(click.Command):
    """Keeps what stands after "--" in `ctx.meta`, as typed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, ctx.meta[META] = args[:at], tuple(args[at + 1 :])
        return super().parse_args(ctx, args)


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that choose and place the engine."""
    for option in reversed(
        (
            click.option(
                "--engine",
                metavar="NAME[@VERSION]",
                default="native",
                show_default=True,
                help="native, or vllm: a real one in an environment of its own.",
            ),
            click.option("--vllm-python", metavar="PATH", help="The python that vLLM is installed for."),
            options.one_pp,
            options.ep,
            click.option(
                "--engine-log",
                metavar="FILE",
                type=click.Path(dir_okay=False, path_type=Path),
                help="Where the engine's own output goes.",
            ),
            click.option(
                "--start-timeout",
                metavar="SECONDS",
                type=click.FloatRange(1),
                default=1800.0,
                show_default=True,
                help="Until the engine must be up.",
            ),
        )
    ):
        command = option(command)
    return command


@dataclass(frozen=True)
class EngineLine:
    """The engine's command, as it will be run.

    model:    named after "--", None where it is not
    words:    flags, ours first; flags: the same by their long names
    variables: NAME=value words before the command
    findings: what the engine would refuse about the words
    """

    model: str | None
    words: tuple[str, ...]
    flags: Mapping[str, Any]
    variables: Mapping[str, str]
    findings: tuple[Finding, ...]

    @property
    def mesh(self) -> Mesh:
        from mlload.plan.mesh import Mesh

        sizes = [self.flags.get(f"{kind}-parallel-size", 1) for kind in ("tensor", "pipeline", "data")]
        tp, pp, dp = (size if isinstance(size, int) and size > 0 else 1 for size in sizes)
        return Mesh(tp=tp, pp=pp, ep=bool(self.flags.get("enable-expert-parallel")), dp=dp)

    @property
    def request(self) -> Request:
        from mlload.cli.engine_options import request_from

        return request_from({name.replace("-", "_"): value for name, value in self.flags.items()})


def refuse_for_native(asked: Mapping[str, Any], words: Sequence[str]) -> None:
    """The native engine takes no words of another one, and has no stages."""
    if words:
        raise MlloadError("what stands after -- is for a real engine", hint="add --engine vllm")
    if options.one_size(asked["pp"], "--pp") > 1:
        raise MlloadError("pipelines are run by a real engine", hint="add --engine vllm")


def engine_line(asked: Mapping[str, Any], words: Sequence[str], version: str) -> EngineLine:
    """Our options and the engine's words as one command. Raises MlloadError for words that make none."""
    from mlload.cli.serve_command import with_file
    from mlload.profiles.serve_line import ServeLine, starts_server
    from mlload.profiles.serve_line import read_line as read_command
    from mlload.profiles.serve_words import read_words

    table = table_for(version)
    if words and (starts_server(words) or (len(words) == 1 and " " in words[0])):
        line = read_command(words, table)
    else:
        read = read_words(words, table)
        if read.positional:
            raise MlloadError(
                f"{read.positional[0]!r} after -- belongs to no flag",
                hint="mlload load-test SOURCE --engine vllm -- --max-model-len 4096, or -- vllm serve MODEL ...",
            )
        line = ServeLine((), None, None, read.given, (), read.findings)
    typed = [word for given in line.given if given.name != "model" for word in given.words]
    if (config := line.value("config")) is not None:
        line = with_file(line, str(config), table)
    ours = read_words(passed_on(asked), table)
    flags = {given.name: given.value for given in (*ours.given, *line.given) if given.known}
    mine = [word for given in ours.given for word in given.words]
    return EngineLine(line.source, (*mine, *typed), flags, variables(line), line.findings)


def table_for(version: str) -> FlagTable:
    """Flags of that version; of the newest that is known where there is no profile of it."""
    from mlload import profiles
    from mlload.profiles.serve_flags import flag_table

    try:
        return flag_table(profiles.load("vllm", version))
    except MlloadError:
        return flag_table(profiles.load("vllm", profiles.available("vllm")[-1]))


def passed_on(asked: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, flag, default in PASSED_ON:
        value = asked[name]
        if value != default and value is not None:
            words += [f"--{flag}"] if value is True else [f"--{flag}", str(value)]
    return words


def variables(line: ServeLine) -> dict[str, str]:
    """Of the command's words before the engine; a shell's values are taken as they stand."""
    found = dict(line.variables)
    for word in line.before:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            found[name] = value
    return found


def log_file(asked: Mapping[str, Any]) -> Path:
    """Where the engine's output goes; a file that stays, so that it can be read afterwards."""
    import tempfile

    named: Path | None = asked["engine_log"]
    if named is None:
        handle, name = tempfile.mkstemp(prefix="mlload-vllm-", suffix=".log")
        os.close(handle)
        return Path(name)
    try:
        named.write_bytes(b"")
    except OSError as error:
        raise MlloadError(f"--engine-log {named} cannot be written: {error.strerror}") from error
    return named


def load_formats(typed: str) -> list[str]:
    """The words of --load-format."""
    words = [word.strip() for word in typed.split(",") if word.strip()]
    if not words:
        raise MlloadError(f"--load-format names at least one loader such as auto, not {typed!r}")
    return words
