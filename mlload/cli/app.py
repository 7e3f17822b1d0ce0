"""The command line: which subcommands there are, and how any error reaches the person who typed.

Only the module of the subcommand that was typed is imported, so `mlload inspect` never pays for
what `mlload load-test` needs.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import click

from mlload import __version__
from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.progress import QUIET
from mlload.cli.output import Output

# In the order in which somebody meets a checkpoint. "load-test" lives in mlload.cli.load_test.
COMMANDS = ("inspect", "validate", "quantize", "shard", "convert", "repair", "diff", "load-test", "rules", "demo")

# What the extra `torch` installs; inspect and validate never need any of it.
EXTRAS = ("torch", "transformers", "safetensors", "tokenizers", "numpy")


class Commands(click.Group):
    """Subcommands that are imported when they are typed; each module offers `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = import_module(f"mlload.cli.{name.replace('-', '_')}").command
        return command


def show_version(ctx: click.Context, option: click.Parameter, wanted: Any) -> None:
    if wanted:
        ctx.obj.print(f"mlload {__version__}")
        ctx.exit()


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="SOURCE may be left out where the current folder is a checkpoint.",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=show_version, help="Print it and exit."
)
@click.option("--quiet", is_flag=True, help="No progress and no remarks: results and errors alone, for any command.")
def app(quiet: bool) -> None:
    """Will this checkpoint start, on this engine, at this size? Look, ask, prepare, load."""


def main(args: list[str] | None = None, out: Output | None = None) -> int:
    """Carry out one command line and return its exit code; no exception leaves this function."""
    words = sys.argv[1:] if args is None else args
    out = out or Output.from_environment()
    try:
        words, out.quiet = without_quiet(words)
        if out.quiet:
            os.environ[QUIET] = "1"
        code = run(words, out)
        out.close()
    except BrokenPipeError:
        return out.abandon()
    return code


def without_quiet(words: list[str]) -> tuple[list[str], bool]:
    """The command line without `--quiet`, which stands anywhere before "--", and whether it was there."""
    end = words.index("--") if "--" in words else len(words)
    kept = [word for word in words[:end] if word != "--quiet"]
    return kept + words[end:], len(kept) < end


def run(words: list[str], out: Output) -> int:
    typed = next((word for word in words if not word.startswith("-")), "")
    try:
        code = app.main(args=words or ["--help"], prog_name="mlload", standalone_mode=False, obj=out)
        return code if isinstance(code, int) else 0
    except MlloadError as error:
        out.error(error.message, error.hint)
        return error.exit_code
    except click.ClickException as error:
        out.error(*usage_error(error.format_message(), typed))
        return 2
    except (KeyboardInterrupt, click.Abort):
        out.error("interrupted")
        return 130
    except Exception as error:
        if os.environ.get("MLLOAD_DEBUG") == "1":
            raise
        if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in EXTRAS:
            out.error(f"{typed} needs {error.name}, which is not installed", "pip install 'mlload[torch]'")
            return 2
        out.error(f"internal error: {type(error).__name__}: {error}", "MLLOAD_DEBUG=1 shows the traceback")
        return 3


def usage_error(message: str, typed: str) -> tuple[str, str]:
    """The sentence and what to type next, for a command line that cannot be understood."""
    message = message[:1].lower() + message[1:].rstrip(".")
    if typed in COMMANDS:
        return message, f"mlload {typed} --help"
    if typed and os.path.exists(typed):
        return f"{typed} is not a command", f"mlload inspect {typed}"
    from difflib import get_close_matches

    near = get_close_matches(typed, COMMANDS, n=1)
    return message, f"mlload {near[0]}" if near else "mlload --help"
